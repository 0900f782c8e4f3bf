"""The conformance suite for transformations."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.dp_event import DpEvent
from jax.typing import ArrayLike
from scipy import special, stats

from dpjax.core import PyTree, Transform
from dpjax.privacy import Guarantee, UnsupportedEventError
from dpjax.testing import _asserts as asserts
from dpjax.testing import _trees as trees
from dpjax.testing._cases import Entry, TransformCase
from dpjax.testing._statistics import check_scale, count_false_alarm

_STEPS = 3
_DRAWS = 16_000  # they tell 0.95 of a scale from it
_FALSE_ALARM = 1e-7
_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
_PARTS = (2, 4)  # coordinates that share a change
_FARTHER = (1.0, 3.0, 10.0)  # than draws, where a law with wider tails than it claims shows
_MOST_EPSILON = 100.0
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5  # a law may be a quadrature
_SMALLEST = 1e-200
_CORRELATION = 0.1  # of ranks, beyond 7 deviations where entries are independent
_FOLLOWS = 0.1  # of a deviation, more than rounding


def check_transform(entry: Entry) -> None:
    """Runs the conformance suite on a registered transformation.

    Structure, shapes and dtypes are kept, or those the case says; one trace for all values; vmap
    over keys equals a loop; a saved and loaded state goes on bit for bit; no two draws are equal
    across leaf, step, run and re-initialisation; a missing key is a TypeError. Noise follows the
    `law` of its case, whose `event` covers it; entries of a leaf are not correlated, and noise is
    the same whatever the updates are.

    Args:
      entry: Of kind `"transform"`; its `make` gives a `TransformCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
      TypeError: If `law` or `event` of the case is of another kind.
      ValueError: If the noise of the `event` cannot be compared with the `law`.
    """
    case: TransformCase = entry.make()
    name = entry.name
    if case.random and case.adds_noise and (case.law is None or case.event is None):
        raise AssertionError(
            f"{name}: noise needs law= (the distribution of a coordinate) and event= (the event at "
            "sensitivity 1) in its TransformCase; adds_noise=False if it adds none"
        )

    for dtype in trees.float_types():
        updates = trees.cast(case.updates, dtype)

        def both(key: jax.Array, updates: PyTree = updates) -> PyTree:
            state = _start(case, case.values[0], updates, key)
            return state, _update(case, case.values[0], updates, trees.fresh(state), key)

        state, (out, after) = jax.eval_shape(both, jax.random.key(0))
        want = updates if case.output is None else case.output(updates)
        trees.assert_types(out, want, f"{name}: updates")
        trees.assert_types(after, state, f"{name}: state")

    step, value = asserts.Program(functools.partial(_update, case)), case.values[0]
    start = state = _start(case, value, case.updates, jax.random.key(2))
    for i, each in enumerate(case.values):
        out, state = step(each, case.updates, trees.fresh(state), jax.random.key(i))
        trees.assert_finite(out, f"{name}: updates")

    saved = trees.save_and_load(state)
    for i in range(2):
        on, state = step(value, case.updates, trees.fresh(state), jax.random.key(10 + i))
        back, saved = step(value, case.updates, trees.fresh(saved), jax.random.key(10 + i))
        trees.assert_identical(back, on, f"{name}: updates after save and load")
        trees.assert_identical(saved, state, f"{name}: state after save and load")

    runs = []
    for seed in (7, 8, 9):
        if case.key_in_state:
            start = _start(case, value, case.updates, jax.random.key(seed))
        runs.append((value, case.updates, trees.fresh(start), jax.random.key(seed)))
    looped = [step(*trees.fresh(each)) for each in runs]
    step.assert_one_trace(name)
    asserts.assert_vmap_equals_loop(step.part, trees.fresh(runs), looped, name)
    if not case.random:
        return
    _check_draws(case, name)
    if not case.key_in_state:
        transform = case.build(value)
        given = case.updates, transform.init(_params(case, case.updates)), case.params
        asserts.assert_needs_key(lambda: transform.update(*given, **case.extra), f"{name}: update")
    if case.law is not None:
        _check_noise(case, name)


def _built(case: TransformCase, value: ArrayLike, key: jax.Array) -> Transform:
    made: Transform = case.build(value, key) if case.key_in_state else case.build(value)
    return made


def _params(case: TransformCase, updates: PyTree) -> PyTree:
    """The parameters in the float type of the updates, or the updates themselves."""
    like = jnp.result_type(*jax.tree.leaves(updates))
    return updates if case.params is None else trees.cast(case.params, like)


def _start(case: TransformCase, value: ArrayLike, updates: PyTree, key: jax.Array) -> PyTree:
    return _built(case, value, key).init(_params(case, updates))


def _update(
    case: TransformCase, value: ArrayLike, updates: PyTree, state: PyTree, key: jax.Array
) -> PyTree:
    """One update; of a transformation with a key in its state, the state's key is used."""
    params = None if case.params is None else _params(case, updates)
    given = {"key": key} if case.random and not case.key_in_state else {}
    transform = _built(case, value, trees.fresh(key))
    return transform.update(updates, state, params, **given, **case.extra)


def _check_noise(case: TransformCase, name: str) -> None:
    assert case.law is not None
    assert case.event is not None
    zeros = jax.tree.map(jnp.zeros_like, case.updates)

    @functools.partial(jax.jit, compiler_options=trees.QUICK)
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def first(value: ArrayLike, updates: PyTree, key: jax.Array) -> PyTree:
        return _update(case, value, updates, _start(case, value, updates, key), key)[0]

    def every_first(value: ArrayLike, updates: PyTree) -> np.ndarray:
        keys = jax.random.split(jax.random.key(6), _DRAWS)
        leaves = jax.tree.leaves(first(jnp.float32(value), updates, keys))
        return np.concatenate([trees.to_numpy(leaf).reshape(_DRAWS, -1) for leaf in leaves], 1)

    for value in case.values:
        every = every_first(value, zeros)
        _check_entries(every, every_first(value, case.updates), f"{name} at {value}")
        # one coordinate a run, in turn, for those of a run may depend on each other
        draws = every[np.arange(_DRAWS), np.arange(_DRAWS) % every.shape[1]]
        change = float(case.extra.get("sensitivity", 1.0))
        check_noise(draws, case.law(value), case.event(value), change, f"{name} at {value}")


def _check_entries(noise: np.ndarray, noisy: np.ndarray, name: str) -> None:
    """Raises where entries share noise, or noise follows the updates; `[draws, entries]`."""
    ranks = stats.rankdata(noise, axis=0)
    related = np.abs(np.corrcoef(ranks.T)) - np.eye(noise.shape[1])
    if np.max(related) > _CORRELATION:
        one, other = np.unravel_index(np.argmax(related), related.shape)
        raise AssertionError(
            f"{name}: noise of entries {one} and {other} is correlated, by {np.max(related):.2g}"
        )
    scale = np.std(noise.astype(np.float64), axis=0)
    moved = np.std(noisy.astype(np.float64) - noise, axis=0)
    if np.any(moved > _FOLLOWS * scale):
        raise AssertionError(
            f"{name}: noise depends on the updates: with the same keys it differs from that on "
            f"updates of 0 by up to {np.max(moved / scale):.2g} of its deviation"
        )


def _check_draws(case: TransformCase, name: str) -> None:
    zeros, value = jax.tree.map(jnp.zeros_like, case.updates), case.values[1]
    # one object, initialised for each run
    shared = None if case.key_in_state else _built(case, value, jax.random.key(3))

    @jax.jit
    def run(data: jax.Array) -> list[PyTree]:
        key = jax.random.wrap_key_data(data)
        one = dataclasses.replace(case, build=lambda value: shared) if shared else case
        state, outs = _start(one, value, zeros, key), []
        for _ in range(_STEPS):
            out, state = _update(one, value, zeros, state, key)
            outs.append(out)
        return outs

    drawn = []
    runs = asserts.key_data(4, 5) if case.adds_noise else []
    for number, made in enumerate(map(jax.jit(run, compiler_options=trees.QUICK), runs)):
        for t, out in enumerate(made):
            for path, leaf in jax.tree_util.tree_leaves_with_path(out):
                where = f"leaf {jax.tree_util.keystr(path)} of step {t} of run {number}"
                drawn.append((where, trees.to_numpy(leaf).ravel()))
    for i, (where, noise) in enumerate(drawn):
        for other, noise_there in drawn[:i]:
            common = min(noise.size, noise_there.size)
            if common > 1 and np.array_equal(noise[:common], noise_there[:common]):
                raise AssertionError(f"{name}: {where} gets the same noise as {other}")
    asserts.assert_draws_differ(run, name)


def check_noise(draws: np.ndarray, law: Any, event: DpEvent, change: float, name: str) -> None:
    """Raises AssertionError unless draws follow a law whose scale is that of the event.

    Kolmogorov-Smirnov, with the power half of `check_scale`, and the spread of normal scores, which
    tells a scale that is off by some 5% in 16,000 draws. Then the law and the law shifted by
    `change` must be no further apart than the event claims: by the best threshold, which for a
    log-concave law is the best of all tests; a pure epsilon must hold far out in the tail, and for
    a change that several independent coordinates share, in the l1 norm.

    Args:
      draws: Independent draws of a coordinate, `[n]`; integers for a law on the integers.
      law: Frozen distribution, or a distribution function.
      event: The event claimed.
      change: How far a record moves the coordinate.
      name: Shown in messages.

    Raises:
      AssertionError: If draws and law, or law and event, do not agree.
    """
    cdf = getattr(law, "cdf", law)
    values, smooth = draws.astype(np.float64), cdf
    if np.issubdtype(draws.dtype, np.integer):
        smooth = _spread_over_cells(cdf)
        values = values + np.random.default_rng(0).uniform(size=values.size)
    check_scale(values, lambda scale: lambda x: smooth(x / scale), 1.0, name=f"{name}: noise")
    count_false_alarm(_FALSE_ALARM)
    scores = special.ndtri(np.clip(smooth(values), _ABSOLUTE, 1 - _ABSOLUTE))
    total = float(np.sum(np.square(scores)))
    ends = stats.chi2.cdf(total, scores.size), stats.chi2.sf(total, scores.size)
    if 2 * min(ends) < _FALSE_ALARM:
        raise AssertionError(
            f"{name}: noise has about {math.sqrt(total / scores.size):.3f} times the scale of its "
            f"law, by {scores.size} draws"
        )
    guarantee = Guarantee(event)
    middle = np.median(draws)
    cuts = np.concatenate([middle + far * (draws - middle) for far in _FARTHER])
    if np.issubdtype(draws.dtype, np.integer):
        cuts = np.floor(cuts)
    cuts = np.concatenate([cuts, cuts + change])
    below, shifted = cdf(cuts), cdf(cuts - change)
    pure = math.inf
    with contextlib.suppress(UnsupportedEventError):
        pure = guarantee.epsilon(0.0)
    for epsilon in (*_EPSILONS, *([pure] if pure < _MOST_EPSILON else [])):
        growth = math.exp(epsilon)
        tails = (below, shifted), (1 - shifted, 1 - below)
        found = float(max(np.max(a - growth * b) for a, b in tails))
        claimed = guarantee.delta(epsilon)
        if found > claimed * (1 + _RELATIVE) + _ABSOLUTE:
            raise AssertionError(
                f"{name}: the event claims delta({epsilon:g}) = {claimed:.6g}, but noise of this "
                f"law gives {found:.6g} for a change by {change:g}: {event}"
            )
    # in a tail that no draw is from, too; a distribution function may be a quadrature
    least = _SMALLEST if hasattr(law, "cdf") else _ABSOLUTE
    for parts in (1, *_PARTS) if np.issubdtype(draws.dtype, np.floating) else (1,):
        shifted = cdf(cuts - change / parts)
        seen = shifted > least
        ratio = parts * float(np.max(np.log(below[seen] / shifted[seen]), initial=0))
        if ratio > pure * (1 + _RELATIVE):
            raise AssertionError(
                f"{name}: the event claims a pure epsilon of {pure:g}, but by noise of this law "
                f"{ratio:.6g} is lost for a change by {change / parts:g} of each of {parts}: "
                f"{event}"
            )


def _spread_over_cells(cdf: Callable[..., Any]) -> Callable[..., Any]:
    """The distribution function of an integer plus a uniform number in [0, 1)."""

    def spread(x: np.ndarray) -> Any:
        whole = np.floor(x)
        before = cdf(whole - 1)
        return before + (x - whole) * (cdf(whole) - before)

    return spread
