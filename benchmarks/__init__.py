"""Benchmarks: `python -m benchmarks list | run STUDY | plot | compare A.json B.json | readme`."""
