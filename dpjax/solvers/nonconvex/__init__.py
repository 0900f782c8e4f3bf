"""Nonsmooth nonconvex problems."""
