"""Gradient estimators: Maurey sampling, randomised smoothing."""
