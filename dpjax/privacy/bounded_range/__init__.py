"""Draws of bounded range: the exponential mechanism."""
