"""A package, since others install one of this name."""
