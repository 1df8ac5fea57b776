"""Benchmarks: each is one command."""
