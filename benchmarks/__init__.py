"""Benchmarks a user can run: `python -m benchmarks.attention`, `python -m benchmarks.models`."""
