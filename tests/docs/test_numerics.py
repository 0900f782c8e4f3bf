"""What docs/numerics.md says is true, where no other test shows it."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.geometry._blocks import stages
from dpjax.random._normal import normals_of_words
from dpjax.transforms import discrete_gaussian_shortfall

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("double", [False, True])
def test_end_of_normal_noise(double, request):
    if double:
        request.getfixturevalue("x64")
    ends = np.array([[0x80000000, 0x7FFFFFFF], [0, 0xFFFFFFFF]], np.uint32)
    low, high = normals_of_words(*ends, double)
    assert (low, high) == pytest.approx((-9.08, 9.08), abs=5e-3)
    assert "9.08" in PAGE
    assert 2 * stats.norm.sf(high) == pytest.approx(1.1e-19, rel=0.02)


def test_distance_of_the_discrete_gaussian():
    assert 1000 * discrete_gaussian_shortfall(100.0) < 2e-13


def words(key):
    return np.asarray(jax.random.key_data(key))


def test_words_of_rbg_keys():
    for key in (
        jax.random.key(5, impl="rbg"),
        jax.random.fold_in(jax.random.key(5, impl="rbg"), 3),
    ):
        assert key.dtype == jax.random.key(0, impl="rbg").dtype
        np.testing.assert_array_equal(words(key)[:2], words(key)[2:])


def test_first_key_of_a_batch_draws_for_all():
    """By rbg alone; what noise makes of it is in tests/random/test_rbg.py."""
    keys = [jax.random.key(seed, impl="rbg") for seed in (1, 2, 3)]
    one, two = (
        jax.vmap(lambda w: jax.random.bits(jax.random.wrap_key_data(w, impl="rbg"), (4,)))(
            jnp.stack([jax.random.key_data(keys[0]), jax.random.key_data(keys[other])])
        )
        for other in (1, 2)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one[0], one[1])
    np.testing.assert_array_equal(one[0], jax.random.bits(keys[0], (4,)))
    assert not np.array_equal(one[1], jax.random.bits(keys[1], (4,)))


def test_unsafe_rbg_gives_two_numbers_one_key():
    def folded(impl, first, second):
        return words(
            jax.random.fold_in(jax.random.fold_in(jax.random.key(7, impl=impl), first), second)
        )

    np.testing.assert_array_equal(folded("unsafe_rbg", 0, 1), folded("unsafe_rbg", 1, 0))
    for impl in ("rbg", "threefry2x32"):
        assert not np.array_equal(folded(impl, 0, 1), folded(impl, 1, 0))


def test_stages_of_a_draw_are_short():
    for dim in (7, 127, 128, 1000, 4919, 10**6 + 3, 10**7):
        sizes = []
        jax.eval_shape(
            lambda u, sizes=sizes: sizes.extend(stage.size for stage in stages(u)),
            jax.ShapeDtypeStruct((dim,), jnp.float32),
        )
        assert max(sizes) < 128
    assert "fewer than 128 numbers each" in PAGE


def test_code_runs():
    script = runpy.run_path(str(ROOT / "scripts" / "readme.py"))
    (block,) = script["blocks"](PAGE, "python")
    exec(compile(block.code, "docs/numerics.md", "exec"), {})
