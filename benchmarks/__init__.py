"""Benchmarks: `python -m benchmarks list | run STUDY [--fast] | plot [STUDY]`."""
