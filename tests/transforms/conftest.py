"""Float64 where an oracle is exact."""

import jax
import pytest


@pytest.fixture
def x64():
    """Double precision within one test."""
    if hasattr(jax, "enable_x64"):
        with jax.enable_x64(True):
            yield
    else:  # before jax 0.8
        from jax.experimental import enable_x64

        with enable_x64():
            yield
