"""dpjax: private optimisation in JAX."""

__version__ = "0.1.0"
