"""Noise correlated over steps: strategies, and sums that carry it."""
