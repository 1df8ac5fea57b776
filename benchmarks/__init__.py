"""Benchmarks of the solvers, one file each: ``python -m benchmarks`` or ``make bench``."""
