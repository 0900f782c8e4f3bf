"""Random extreme values: what is accepted lies in its bounds, what comes out is total."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dpjax
from dpjax import geometry as G
from dpjax import privacy as R
from dpjax import sampling as S
from dpjax import transforms as T
from dpjax.testing import _trees as trees
from tests.entries.rows import Number

from .constructors import ROWS

_FUZZ = functools.partial(settings, derandomize=True, deadline=None, database=None)
_NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 5e-324, 1.0, 1 - 1e-16, 1 + 1e-15, 1e308, -1e308]),
    st.integers(-(10**320), 10**320),
    st.integers(-3, 40),
)
_THINGS = st.one_of(_NUMBERS, st.text(max_size=3), st.binary(max_size=2), st.complex_numbers())
# cheap to build whatever the number is
_COSTLY = {"best_response", "goldstein_norm", "stationarity_plan", "calibrate_gaussian"}
_COSTLY |= {"BinaryTree", "BufferedToeplitz", "tree_aggregation", "fit_buffered_toeplitz"}
_COSTLY |= {"add_discrete_gaussian", "discrete_gaussian_shortfall"}
_COSTLY |= {"add_rounded_gaussian", "rounded_gaussian_shortfall"}
_ARGUMENTS = [
    (name, argument)
    for name, row in ROWS.items()
    for argument, (_, kind) in row.attacked.items()
    if isinstance(kind, Number) and name not in _COSTLY
]


@pytest.mark.slow
@_FUZZ(max_examples=500)
@given(where=st.sampled_from(_ARGUMENTS), value=_THINGS)
def test_what_a_constructor_takes_lies_in_its_bounds(where, value):
    name, argument = where
    row = ROWS[name]
    kind = row.attacked[argument][1]
    expected = isinstance(value, int | float) and kind.holds(value)
    said = f"{name}({argument}={value!r})"
    try:
        row.make(**{**row.given, **row.good, argument: value})
    except (TypeError, ValueError, RuntimeWarning) as error:
        told = "must be finite" in str(error) or "overflow" in str(error)
        if told and abs(value) > float(np.finfo(np.float32).max):
            return  # what follows from it, or its float32, is infinite
        if "must be > 0, got 0.0" in str(error) and 0 < abs(value) < 1e-150:
            return  # its square is 0
        if expected or argument not in str(error):
            raise AssertionError(f"{said} is refused: {error}") from error
    else:
        assert expected, f"{said} is accepted"


_SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1e-38, 1e-20, 1e-7, 0.5, 1.0, -3.0, 1e7]
_SPECIAL += [1e15, 1e19, -1e20, 1e30, 1e38, -3.4e38]
_BOUNDS = [0.0, 1e-30, 1e-7, 1e-3, 1.0, 700.0, 1e30, 3e38]
_entry = st.sampled_from(_SPECIAL)
_rows = st.lists(st.lists(_entry, min_size=6, max_size=6), min_size=4, max_size=4)
_mask = st.lists(st.booleans(), min_size=4, max_size=4)


sizes_in = {
    "l1": lambda rows: np.abs(rows).sum(axis=1),
    "l2": lambda rows: np.linalg.norm(rows, axis=1),
    "linf": lambda rows: np.abs(rows).max(axis=1),
    "range": lambda rows: rows.max(axis=1) - rows.min(axis=1),
}


@functools.cache
def clipped(name):
    """The sum, and what each example adds alone."""

    def build(bound):
        if name == "range":
            return T.clip_by_range(bound, G.Simplex(6))
        return T.clip_by_norm(bound, name)

    def run(rows, mask, bound):
        clip = build(bound)
        empty = {} if name == "range" else {"none": jnp.zeros((4, 0))}
        parts = {"a": rows} if name == "range" else {"a": rows[:, :4], "b": rows[:, 4:]}

        def total(mask):
            return clip.update({**parts, **empty}, clip.init(None), mask=mask)[0]

        alone = jax.vmap(total)(jnp.eye(4, dtype=bool) & mask[None])
        return total(mask), alone

    shapes = jnp.zeros((4, 6), jnp.float32), jnp.zeros(4, bool), jnp.float32(1)
    return jax.jit(run).lower(*shapes).compile(trees.QUICK)


@pytest.mark.parametrize("name", ["l1", "l2", "linf", "range"])
@_FUZZ(max_examples=100)
@given(rows=_rows, mask=_mask, bound=st.sampled_from(_BOUNDS))
def test_no_example_adds_more_than_the_bound(name, rows, mask, bound):
    rows, mask = np.asarray(rows, np.float32), np.asarray(mask)
    total, alone = jax.device_get(clipped(name)(rows, mask, np.float32(bound)))
    trees.assert_finite((total, alone), name)
    flat = [np.asarray(a, np.float64) for a in jax.tree.leaves(alone)]
    sizes = sizes_in[name](np.concatenate(flat, axis=1))
    assert np.all(sizes <= bound * (1 + 1e-5)), (sizes, bound)
    bad = ~np.all(np.isfinite(rows), axis=1) | ~mask
    assert not any(np.any(a[bad]) for a in jax.tree.leaves(alone)), "an absent example adds"
    others = np.where(bad[:, None], np.float32(7e37), rows)
    again = jax.device_get(clipped(name)(others, mask & ~bad, np.float32(bound))[0])
    trees.assert_identical(again, total, f"{name}: sum with other absent examples")
    # nothing is lost that a bound of ordinary size could keep
    full = sizes_in[name](np.where(bad[:, None], 0, rows.astype(np.float64)))
    plain = ~bad & (full > 1e-18) & (np.abs(rows).max(axis=1) < 1e16)
    if 1e-3 <= bound <= 700 and name != "range":  # there a shift is bounded too
        assert np.all(sizes[plain] >= 0.99 * np.minimum(bound, full[plain])), (sizes, full)


@pytest.mark.parametrize("name", ["linf", "range"])
def test_a_sum_of_the_largest_bounds_is_finite(name):
    rows = np.where(np.arange(6) < 3, np.float32(3.4e38), -np.float32(1e38 * (name == "linf")))
    rows = np.broadcast_to(rows, (4, 6))
    total, alone = jax.device_get(clipped(name)(rows, np.ones(4, bool), np.float32(3.4e38)))
    trees.assert_finite(total, name)
    assert all(np.abs(a).max() > 1e29 for a in jax.tree.leaves(alone) if a.size)


@functools.cache
def drawn():
    domain = G.L1Ball(6, 2.0)

    def run(bits, logits):
        key = jax.random.wrap_key_data(bits)
        first, second = jax.random.split(key)
        return G.sample_vertices(first, logits, 8), domain.sample(second, logits, 8)

    return jax.jit(run).lower(jnp.zeros(2, jnp.uint32), jnp.zeros(6)).compile(trees.QUICK)


@_FUZZ(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), logits=st.lists(_entry, min_size=6, max_size=6))
def test_draws_are_indices_whatever_the_logits(seed, logits):
    bits = np.array([0, seed], np.uint32)
    logits = np.asarray(logits, np.asarray(jnp.zeros(0)).dtype)
    simplex, ball = jax.device_get(drawn()(bits, logits))
    assert np.all((simplex >= 0) & (simplex < 6))
    assert np.all((ball >= 0) & (ball < 12))
    if np.any(logits > -np.inf) and not np.any(np.isnan(logits)):
        assert np.all(logits[simplex] > -np.inf), "drew a vertex of weight 0"


@_FUZZ(max_examples=20)
@given(
    noise=st.floats(0.5, 1e9),
    delta=st.floats(1e-250, 1 - 1e-9),
    epsilon=st.floats(0, 1e300),
    relation=st.sampled_from(["add_or_remove_one", "replace_one", "replace_special"]),
)
# a divergence below the last bit of 1
@example(noise=95379617.0, delta=0.5, epsilon=1.0, relation="add_or_remove_one")
def test_a_guarantee_is_total(noise, delta, epsilon, relation):
    guarantee = dpjax.Guarantee(dpe.GaussianDpEvent(noise), relation)
    least, at = guarantee.epsilon(delta), guarantee.delta(epsilon)
    assert least >= 0
    assert 0 <= at <= 1
    assert guarantee.delta(0.0) >= at
    if math.isfinite(least):
        assert guarantee.delta(least * (1 + 1e-9)) <= delta * (1 + 1e-6)


@pytest.mark.slow
@_FUZZ(max_examples=8)
@given(epsilon=st.floats(1e-9, 2.0), delta=st.floats(1e-200, 1 - 1e-6))  # beyond, slow
def test_calibrated_noise_meets_the_budget_or_says_why_not(epsilon, delta):
    try:
        noise = R.calibrate_noise(dpe.GaussianDpEvent, R.Budget(epsilon, delta))
    except ValueError as error:
        if "epsilon" not in str(error):
            raise
        return
    assert math.isfinite(noise)
    assert R.Guarantee(dpe.GaussianDpEvent(noise)).epsilon(delta) <= epsilon


@_FUZZ(max_examples=200)
@given(noise=st.floats(0, 1e300), part=st.floats(1e-9, 1 - 1e-9))
def test_split_noise_costs_no_more_than_the_whole(noise, part):
    made = R.effective_noise_multiplier(*R.split_noise_multiplier(noise, part))
    assert noise <= made <= noise * (1 + 1e-9)


@_FUZZ(max_examples=200)
@given(
    steps=st.integers(1, 60),
    extra=st.integers(0, 5000),
    tail=st.integers(0, 100),
    rate=st.floats(1e-12, 1.0),
    delta=st.floats(1e-300, 1 - 1e-9),
)
def test_batch_sizes_and_capacities_are_total(steps, extra, tail, rate, delta):
    records = steps + extra
    sizes = S.tapered_sizes(steps, records, tail)
    assert sizes.shape == (steps,)
    assert sizes.min() >= 1
    assert sizes.sum() <= records
    capacity = S.poisson_capacity(records, rate, steps, delta=delta, epsilon=1.0)
    assert 1 <= capacity <= records
    cost = steps * S.overflow_probability(records, rate, capacity) * (1 + math.e)
    assert cost <= 0.01 * delta * (1 + 1e-6)
