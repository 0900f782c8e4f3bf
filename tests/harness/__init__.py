"""Outputs for fixed keys and claimed epsilons of everything registered."""
