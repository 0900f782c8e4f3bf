"""Runs that are saved and go on, and what tells one run from another."""
