"""Gradient descent with clipped, noisy sums."""
