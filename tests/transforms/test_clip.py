import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax.testing as dpt
from dpjax.geometry import Simplex
from dpjax.transforms import OuterProduct, clip_by_norm, clip_by_range, per_example_norm

SLOW = pytest.mark.slow
NORMS = ("l1", "l2", "linf")
B = 6


def make(rng, scale=3.0):
    return {
        "w": jnp.asarray(scale * rng.normal(size=(B, 3, 2)), jnp.float32),
        "b": jnp.asarray(scale * rng.normal(size=(B, 2)), jnp.float32),
        "s": jnp.asarray(scale * rng.normal(size=B), jnp.float32),
    }


@functools.partial(jax.jit, static_argnames="norm")
def clipped(values, mask, max_norm, norm):
    clip = clip_by_norm(max_norm, norm)
    return clip.update(values, clip.init(None), mask=mask)[0]


def total(values, max_norm, norm="l2", mask=None):
    leaves = jax.tree.leaves(values)
    mask = np.ones(leaves[0].shape[0], bool) if mask is None else np.asarray(mask)
    return clipped(values, mask, max_norm, norm)


def rows(values):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(values)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def norms_of(matrix, norm):
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    return np.linalg.norm(matrix, order, axis=1)


def flat(tree):
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("max_norm", [0.3, 5.0, 1e3])
def test_equals_numpy(rng, norm, max_norm):
    values = make(rng)
    matrix = rows(values)
    mask = np.array([True, False, True, True, True, False])
    factors = np.minimum(1, max_norm / norms_of(matrix, norm)) * mask
    np.testing.assert_allclose(
        flat(total(values, max_norm, norm, mask)), factors @ matrix, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(per_example_norm(values, norm), norms_of(matrix, norm), rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_outer_product_equals_its_matrix(rng, norm):
    outer = OuterProduct(
        jnp.asarray(rng.normal(size=(B, 4)), jnp.float32),
        jnp.asarray(rng.normal(size=(B, 3)), jnp.float32),
    )
    bias = jnp.asarray(rng.normal(size=(B, 3)), jnp.float32)
    mask = jnp.arange(B) != 2
    factored = total({"w": outer, "b": bias}, 1.0, norm, mask)
    formed = total({"w": outer.materialize(), "b": bias}, 1.0, norm, mask)
    assert factored["w"].shape == (4, 3)
    np.testing.assert_allclose(flat(factored), flat(formed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_spoiled_examples_and_padding_add_nothing(rng, norm, bad):
    values = make(rng)
    mask = np.arange(B) != 4
    want = flat(total(values, 1.0, norm, mask & (np.arange(B) != 1)))
    spoiled = {name: np.array(leaf) for name, leaf in values.items()}
    for leaf in spoiled.values():
        leaf[4] = bad
    spoiled["w"][1] = bad  # 3e38 six times: the norm overflows
    np.testing.assert_array_equal(flat(total(spoiled, 1.0, norm, mask)), want)


@pytest.mark.parametrize("part", ["left", "right"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_spoiled_factors_add_nothing(rng, part, bad):
    outer = OuterProduct(np.ones((3, 2), np.float32), np.float32([[0, 0], [1, 1], [1, 1]]))
    factor = np.array(getattr(outer, part))
    factor[0, 0] = bad
    spoiled = outer._replace(**{part: factor})  # inf * 0 would be NaN
    got = total(spoiled, 100.0)
    np.testing.assert_array_equal(got, total(outer, 100.0, mask=[False, True, True]))


WIDE = 2**9 + 3  # so long that CPU adds parts of the examples, the last one reaching back
MANY = 70


@pytest.mark.parametrize("columns", [1, 3, 5])
@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16, float, jnp.int32])
def test_wide_outer_products_equal_numpy(rng, columns, kind):
    left = jnp.asarray(3 * rng.normal(size=(MANY, WIDE)), kind)
    right = jnp.asarray(rng.normal(size=(MANY, columns)), jnp.float32)
    mask = rng.uniform(size=MANY) < 0.8
    left64, right64 = np.asarray(left, np.float64), np.asarray(right, np.float64)
    norms = np.linalg.norm(left64, axis=1) * np.linalg.norm(right64, axis=1)
    max_norm = float(np.median(norms))
    weights = right64 * (np.minimum(1, max_norm / norms) * mask)[:, None]
    got = total(OuterProduct(left, right), max_norm, mask=mask)
    np.testing.assert_allclose(got, left64.T @ weights, rtol=1e-4, atol=1e-5 * max_norm)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_spoiled_examples_of_wide_outer_products_add_nothing(rng, bad):
    left = rng.normal(size=(MANY, WIDE)).astype(np.float32)
    right = rng.normal(size=(MANY, 2)).astype(np.float32)
    # in the first part, where the last two overlap, and in the last one
    places = np.isin(np.arange(MANY), [5, 40, 66])
    want = total(OuterProduct(left, right), 1.0, mask=~places)
    spoiled = left.copy()
    spoiled[places, WIDE - 1] = bad
    np.testing.assert_array_equal(total(OuterProduct(spoiled, right), 1.0), want)
    np.testing.assert_array_equal(
        total(OuterProduct(spoiled, right), 1.0, mask=~places), want
    )  # and so do spoiled records that take no part
    assert np.abs(want).max() > 0
    assert not flat(total(OuterProduct(spoiled, right), 1.0, mask=np.zeros(MANY, bool))).any()


def test_one_example_of_many_wide_ones_adds_its_bound_once(rng):
    left = rng.normal(size=(MANY, WIDE)).astype(np.float32)
    right = rng.normal(size=(MANY, 2)).astype(np.float32)
    for place in (0, 31, 37, 38, 45, 63, 64, 69):
        alone = total(OuterProduct(left, right), 1.0, mask=np.arange(MANY) == place)
        np.testing.assert_allclose(np.linalg.norm(alone), 1.0, rtol=1e-5)


def test_wide_outer_products_of_many_runs_at_once(rng):
    left = jnp.asarray(rng.normal(size=(3, MANY, WIDE)), jnp.float32)
    right = jnp.asarray(rng.normal(size=(3, MANY, 2)), jnp.float32)
    runs = jax.vmap(lambda x, c: total(OuterProduct(x, c), 1.0))(left, right)
    shared = jax.vmap(lambda c: total(OuterProduct(left[0], c), 1.0))(right)
    for run in range(3):
        one = total(OuterProduct(left[run], right[run]), 1.0)
        np.testing.assert_allclose(runs[run], one, rtol=1e-5, atol=1e-5)
        one = total(OuterProduct(left[0], right[run]), 1.0)
        np.testing.assert_allclose(shared[run], one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_clip_zero_zero_examples_and_no_examples(rng, norm):
    values = make(rng)
    assert not flat(total(values, 0.0, norm)).any()
    assert not flat(total(jax.tree.map(jnp.zeros_like, values), 1.0, norm)).any()
    assert not flat(total(values, 1.0, norm, np.zeros(B, bool))).any()
    none = jax.tree.map(lambda a: a[:0], values)
    out = total(none, 1.0, norm)
    assert out["w"].shape == (3, 2)
    assert not flat(out).any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_accumulates_in_float32(dtype):
    # in bfloat16 the sum would stop at 256, where 256 + 1 = 256
    values = jnp.ones((1000, 1), dtype)
    out = total(values, 10.0)
    assert out.dtype == jnp.float32
    assert float(out[0]) == 1000.0
    outer = total(OuterProduct(values, values), 10.0)
    assert outer.dtype == jnp.float32
    assert float(outer[0, 0]) == 1000.0
    # and so would the square norm of one example
    np.testing.assert_allclose(per_example_norm(jnp.ones((1, 2000), dtype)), 2000**0.5, rtol=1e-6)


def test_float64_stays_float64():
    if not jax.config.jax_enable_x64:
        pytest.skip("needs 64-bit types")
    assert total(jnp.ones((2, 3), jnp.float64), 1.0).dtype == jnp.float64


@pytest.mark.parametrize("max_norm", [1e-20, 1.0])
def test_norms_below_the_float_range_hide_nothing(max_norm):
    # the squares of one factor vanish in float32, the other is huge: their product is not small
    hidden = OuterProduct(jnp.full((1, 100), 0.9e-19), jnp.full((1, 4), 9e18))
    assert np.linalg.norm(flat(total(hidden, max_norm))) <= max_norm * (1 + 1e-5)
    small = jnp.full((1, 100), 0.9e-19)
    assert np.linalg.norm(flat(total(small, max_norm))) <= max_norm * (1 + 1e-5)


def test_norm_of_many_entries_is_not_underestimated(rng):
    values = jnp.asarray(rng.normal(size=(1, 2_000_000)), jnp.float32)
    for norm in ("l1", "l2"):
        clipped = np.asarray(total(values, 1.0, norm), np.float64)[None]
        assert norms_of(clipped, norm)[0] <= 1 + 1e-5


@pytest.mark.parametrize("norm", ["l2", *(pytest.param(n, marks=SLOW) for n in ("l1", "linf"))])
def test_neighbours_reach_the_sensitivity_and_never_exceed_it(rng, norm):
    values = {name: leaf[:4] for name, leaf in make(rng).items()}
    clip = clip_by_norm(2.0, norm)

    def statistic(batch, mask):
        return clip.update(batch, clip.init(None), mask=mask)[0]

    for relation in ("add_or_remove_one", "replace_one"):
        bound = clip.sensitivity(relation)
        worst = dpt.largest_change(
            statistic, values, norm=norm, relation=relation, key=jax.random.key(0)
        )
        assert 0.97 * bound <= worst.change <= bound * (1 + 1e-5)
        if relation == "add_or_remove_one":
            assert worst.change >= 0.99 * bound


def test_outer_product_neighbours(rng):
    values = {
        "w": OuterProduct(jnp.full((3, 2), 0.1), jnp.full((3, 2), 0.1)),
        "b": jnp.full((3, 2), 0.1),
    }
    clip = clip_by_norm(0.5)
    worst = dpt.largest_change(
        lambda batch, mask: clip.update(batch, clip.init(None), mask=mask)[0],
        values,
        key=jax.random.key(0),
    )
    assert 0.495 <= worst.change <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_traced_bound_below_zero_lets_nothing_through(rng, norm):
    rows = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)

    @jax.jit
    def total(bound):
        return clip_by_norm(bound, norm).update(rows, None, mask=jnp.ones(5, bool))[0]

    assert np.any(total(1.0))
    assert not np.any(total(-1.0))


def test_sensitivity_of_each_relation():
    clip = clip_by_norm(1.5)
    assert clip.sensitivity("add_or_remove_one") == 1.5
    assert clip.sensitivity("replace_special") == 1.5
    assert clip.sensitivity("replace_one") == 3.0
    assert isinstance(clip_by_norm(jnp.float32(1.5)).sensitivity("replace_one"), float)
    assert jax.jit(lambda c: clip_by_norm(c).sensitivity("replace_one"))(1.5) == 3.0


def test_errors():
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="max_norm must be"):
            clip_by_norm(bad)
    with pytest.raises(ValueError, match="l3"):
        clip_by_norm(1.0, "l3")
    with pytest.raises(ValueError, match="relation"):
        clip_by_norm(1.0).sensitivity("friends")


@pytest.mark.parametrize("clip", [clip_by_norm(1.0), clip_by_range(1.0, Simplex(3))])
def test_a_mask_is_a_bool_for_each_example(clip):
    """One of one entry would be broadcast, and count those that take no part."""
    values, state = jnp.ones((B, 3)), clip.init(None)
    for length in (1, B - 1, B + 1):
        with pytest.raises(ValueError, match=rf"mask must have shape \[{B}\], .* got \[{length}\]"):
            clip.update(values, state, mask=jnp.ones(length, bool))
    with pytest.raises(ValueError, match=rf"mask must have shape \[{B}\], .* got \[\]"):
        clip.update(values, state, mask=True)
    with pytest.raises(TypeError, match="mask must be of type bool, got float32"):
        clip.update(values, state, mask=jnp.ones(B, jnp.float32))
    with pytest.raises(TypeError, match=r"mask is required: the one that sampler\.batch returned"):
        clip.update(values, state)


def test_a_mean_gradient_is_no_batch():
    clip = clip_by_norm(1.0)
    mean = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"got shapes \[\[2\], \[3, 2\]\]; a mean gradient has"):
        clip.update(mean, clip.init(None), mask=jnp.ones(B, bool))
    with pytest.raises(ValueError, match=r"got shapes \[\[\]\]"):
        clip.update(jnp.ones(()), clip.init(None), mask=jnp.ones(B, bool))
