"""Gradient estimators: randomised smoothing."""
