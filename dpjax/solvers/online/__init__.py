"""Stochastic convex optimisation from online learners."""
