import jax
import pytest


@pytest.fixture(autouse=True)
def strict_settings():
    """No implicit rank promotion, no key used twice, in every test of this folder."""
    names = {"jax_numpy_rank_promotion": "raise", "jax_debug_key_reuse": True}
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in names.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request):
    """Runs a test with 64-bit types off and on."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield request.param
    jax.config.update("jax_enable_x64", before)
