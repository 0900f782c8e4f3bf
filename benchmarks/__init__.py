"""Benchmarks: `python -m benchmarks list | run | defaults | plot | compare | readme`."""
