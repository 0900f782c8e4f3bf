"""What rounding adds to the sensitivity of a clipped sum, by search, and what is claimed of it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.geometry import Simplex
from dpjax.transforms import (
    OuterProduct,
    add_gaussian,
    clip_by_norm,
    clip_by_range,
    microbatched_sum,
    rounding_allowance,
    weighted_sum,
)
from dpjax.transforms.clipping._weighted_sum import (
    Pair,
    add_pairs,
    bounded_sum,
    noised_sum,
    pair_of,
)


def batches(rows, rng):
    """Records that all point one way, of lengths that make float sums round one way too."""
    ones = np.ones((rows, 2), np.float32)
    lengths = 1 - 2.0 ** -rng.integers(3, 24, (rows, 1)).astype(np.float32)
    halves = 0.5 + 2.0**-24 * rng.integers(0, 3, (rows, 1)).astype(np.float32)
    few = np.where(np.arange(rows)[:, None] % 7 == 0, 1, 2.0**-12).astype(np.float32)
    return [ones, ones * lengths, ones * halves, ones * few, ones * rng.uniform(size=(rows, 1))]


def largest_excess(total, rows, rng):
    """Over batches and removed records, by how much more than 1 the sum moves in l2."""
    worst = -1.0
    for values in batches(rows, rng):
        values = jnp.asarray(values, jnp.float32)
        whole = np.asarray(total(values, jnp.ones(rows, bool)), float)
        for out in (0, 1, rows // 2, rows - 1):
            mask = jnp.arange(rows) != out
            moved = whole - np.asarray(total(values, mask), float)
            # with the record gone the others may lie in other rows
            shifted = jnp.concatenate([values[:out], values[out + 1 :], values[:1]])
            again = whole - np.asarray(total(shifted, jnp.arange(rows) < rows - 1), float)
            worst = max(worst, *(float(np.linalg.norm(m)) - 1 for m in (moved, again)))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "width", "columns", "cut", "centred"),
    [(5000, 256, 2, False, False), (6151, 128, 20, True, True), (9000, 3, None, False, True)],
)
def test_sums_elsewhere_are_those_of_a_cpu(request, rng, rows, width, columns, cut, centred):
    """Two programs of one sum: the same to the bit if it is exact."""
    leaf = jnp.asarray(rng.normal(size=(rows, width)), jnp.float32)
    if columns is not None:
        leaf = OuterProduct(leaf, jnp.asarray(rng.normal(size=(rows, columns)), jnp.float32))
    scale = jnp.asarray(rng.uniform(size=rows) * (rng.uniform(size=rows) > 0.3), jnp.float32)
    shape = (width,) if columns is None else (width, columns)
    centre, bound = (jnp.full(shape, 0.2) if centred else None), 100.0

    def total():
        return jax.jit(lambda *a: bounded_sum(*a, centre, cut=cut))(leaf, scale, bound)

    one = total()
    request.getfixturevalue("elsewhere")
    other = total()
    apart = np.abs((one.high - other.high) + (one.low - other.low)).max()
    # the whole and the rest of a number may be of products that are rounded apart: once or twice
    assert apart <= (0 if cut else 4 * rows * bound * 2.0**-30)
    assert np.abs(one.high).max() > 10


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("size", [None, 9000])
def test_adversarial_batches_stay_below_the_allowance_elsewhere(rng, size):
    total = jax.jit(lambda v, m: microbatched_sum(lambda g: g, clip_by_norm(1.0), v, m, size=size))
    assert 0 < largest_excess(total, 20_000, rng) <= rounding_allowance(20_000, "float32")


@pytest.mark.parametrize(("rows", "size"), [(64, None), (1000, 96), (20_000, None)])
def test_adversarial_batches_stay_below_the_allowance(rng, rows, size):
    total = jax.jit(lambda v, m: microbatched_sum(lambda g: g, clip_by_norm(1.0), v, m, size=size))
    excess = largest_excess(total, rows, rng)
    assert excess <= rounding_allowance(rows, "float32")
    # what is left is the sum's own last rounding: not nothing, and no more than that
    assert excess <= 2.0**-20 + 2 * 2.0**-23 * rows


@pytest.mark.slow
def test_a_million_records_stay_below_the_allowance(rng):
    total = jax.jit(lambda v, m: microbatched_sum(lambda g: g, clip_by_norm(1.0), v, m, size=None))
    assert largest_excess(total, 2**20, rng) <= rounding_allowance(2**20, "float32")


def test_a_sum_that_is_rounded_more_would_be_found(rng):
    def rounded(values, mask):
        total, _ = clip_by_norm(1.0).update(values, None, mask=mask)
        return total.astype(jnp.bfloat16)

    assert largest_excess(jax.jit(rounded), 1000, rng) > rounding_allowance(1000, "float32")


@pytest.mark.parametrize("width", [5, 260])
@pytest.mark.parametrize("outer", [False, True])
def test_sums_do_not_depend_on_order(rng, outer, width):
    rows = jnp.asarray(rng.normal(size=(301, width)), jnp.float32)
    values = OuterProduct(rows, jnp.asarray(rng.normal(size=(301, 2)), jnp.float32))
    values = values if outer else rows
    clip = clip_by_norm(1.0)
    total = jax.jit(lambda v: clip.update(v, clip.init(None), mask=jnp.ones(301, bool))[0])
    want = np.asarray(total(values))
    for order in (np.arange(301)[::-1], rng.permutation(301)):
        again = total(jax.tree.map(lambda a, order=order: a[order], values))
        np.testing.assert_array_equal(again, want)


@pytest.mark.parametrize(("number", "outer"), [(255, True), (258, False), (259, True)])
def test_terms_around_a_centre_do_not_depend_on_their_place(rng, number, outer):
    """Rows that are left over by parts of equal size are another loop of the program."""
    rows = jnp.asarray(rng.normal(size=(number, 260)), jnp.float32)
    if outer:
        rows = OuterProduct(rows, jnp.asarray(rng.normal(size=(number, 2)), jnp.float32))
    scale = jnp.asarray(rng.uniform(size=number) * (rng.uniform(size=number) > 0.3), jnp.float32)
    centre = jnp.asarray(rng.normal(size=(260, 2) if outer else 260), jnp.float32)
    total = jax.jit(lambda r, s: bounded_sum(r, s, 30.0, centre, cut=True))
    want = total(rows, scale)
    for order in (np.arange(number)[::-1], rng.permutation(number)):
        again = total(jax.tree.map(lambda a, order=order: a[order], rows), scale[order])
        for got, expected in zip(again, want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("rows", "width"), [(8, 2), (300, 256)])
def test_seeds_of_which_some_have_a_coarse_grid_are_as_each_alone(rng, rows, width):
    values = jnp.asarray(1e-3 * rng.normal(size=(3, rows, width)), jnp.float32)
    bounds = jnp.asarray([1.0, 1e6, 1e30], jnp.float32)

    def total(row, bound):
        return bounded_sum(row, jnp.ones(rows), bound)

    together = jax.jit(jax.vmap(total))(values, bounds)
    for seed, bound in enumerate(bounds):
        alone = jax.jit(total)(values[seed], bound)
        np.testing.assert_allclose(together.high[seed], alone.high, rtol=1e-6)
        want = values[seed].sum(0)
        np.testing.assert_allclose(together.high[seed], want, atol=rows * 2.0**-21)


@pytest.mark.parametrize("bound", [1e-30, 0.3, 1.0, 1e6, 1e30])
@pytest.mark.parametrize(("rows", "width"), [(1, 3), (7, 3), (258, 300), (5000, 3)])
def test_sums_are_right_for_any_bound(rng, bound, rows, width):
    values = bound * rng.uniform(-1, 1, (rows, width)).astype(np.float32)
    got = bounded_sum(jnp.asarray(values), jnp.ones(rows), bound)
    want = values.astype(float).sum(axis=0)
    error = np.abs(np.asarray(got.high, float) + np.asarray(got.low, float) - want)
    assert np.all(error <= bound * (rows * 2.0**-15 if bound < 1 else rows * 2.0**-17))
    # small gradients below a bound that is far too large keep their digits
    small = np.float32(1e-3) * rng.uniform(-1, 1, (rows, width)).astype(np.float32)
    got = weighted_sum(jnp.asarray(small), jnp.ones(rows), 1e6)
    np.testing.assert_allclose(got, small.sum(axis=0, dtype=float), atol=1e-6 * rows)


def test_the_slope_of_a_sum_is_that_of_its_terms(rng):
    rows = jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)
    scale = jnp.asarray(rng.uniform(size=6), jnp.float32)
    got = jax.grad(lambda r, s: jnp.sum(weighted_sum(r, s, 9.0) ** 2), argnums=(0, 1))(rows, scale)
    want = jax.grad(lambda r, s: jnp.sum((s @ r) ** 2), argnums=(0, 1))(rows, scale)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


def test_pairs_keep_what_floats_lose():
    total = pair_of(jnp.float32(2.0**24))
    add = jax.jit(add_pairs)
    for _ in range(5):
        total = add(total, pair_of(jnp.float32(1.0)))
    assert float(total.high) + float(total.low) == 2.0**24 + 5
    back = add(total, Pair(-total.high, -total.low))
    assert (float(back.high), float(back.low)) == (0.0, 0.0)


def test_sensitivities_of_floats_are_asked_for():
    for clip, relation in itertools.product(
        (clip_by_norm(2.0), clip_by_range(2.0, Simplex(4))), ("add_or_remove_one", "replace_one")
    ):
        exact = clip.sensitivity(relation)
        assert clip.sensitivity(relation, rows=512) == pytest.approx(
            exact * (1 + rounding_allowance(512, "float32")), rel=1e-12
        )
    assert rounding_allowance(512, "float64") < rounding_allowance(512, "float32")
    # no more than noise can hide cheaply in the batches that are usual
    assert rounding_allowance(1024, "float32") < 1e-3
    with pytest.raises(ValueError, match="rows must be >= 0"):
        clip_by_norm(1.0).sensitivity("replace_one", rows=-1)
    chained = dpjax.chain(clip_by_norm(1.0), add_gaussian(1.0))
    assert chained.sensitivity("replace_one", rows=10) > 2


def test_noise_is_larger_by_the_allowance():
    noise, zeros = add_gaussian(3.0), jnp.zeros(4000)
    key, state = jax.random.key(0), add_gaussian(3.0).init(None)
    many, _ = noised_sum(noise, zeros, state, rows=2**16, key=key)
    one, _ = noised_sum(noise, zeros, state, rows=1, key=key)
    few, most = (rounding_allowance(rows, zeros.dtype) for rows in (1, 2**16))
    np.testing.assert_allclose(many, (1 + most) / (1 + few) * one, rtol=1e-5)
    assert most > 0.02 or zeros.dtype == jnp.float64


def test_solvers_ask_for_it(monkeypatch):
    """DPSGD adds more noise, the others scale it to a larger sensitivity."""
    seen = []
    monkeypatch.setattr(
        "dpjax.solvers.descent._dpsgd.noised_sum",
        lambda noise, total, state, *, rows, key: seen.append(rows) or (total, state),
    )
    problem = dpjax.problems.Risk(lambda w, rec: rec["x"] @ w, init=jnp.zeros(2), radius=1.0)
    sampler = dpjax.sampling.FullBatch(1)
    solver = dpjax.solvers.DPSGD(sampler, 3.0, 2.0, learning_rate=1.0, batch_size=1.0)
    state = solver.init(problem, key=jax.random.key(0))
    solver.step(problem, {"x": jnp.zeros((7, 2))}, jnp.zeros(7, bool), state)
    assert seen == [7]
