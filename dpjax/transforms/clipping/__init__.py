"""Clipped sums over examples, in norm or in range, with their sensitivity."""
