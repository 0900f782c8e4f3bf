"""Gradient estimators: Maurey sampling, multilevel, randomised smoothing."""
