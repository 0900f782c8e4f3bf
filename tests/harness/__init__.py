"""Outputs for fixed keys and claimed epsilons of everything registered, before and after a change."""
