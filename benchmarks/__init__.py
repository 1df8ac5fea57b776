"""Benchmarks, one file each: ``python -m benchmarks`` or ``make bench``."""
