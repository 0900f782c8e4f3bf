import jax
import pytest


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request):
    """Runs a test with 64-bit types off and on."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield request.param
    jax.config.update("jax_enable_x64", before)
