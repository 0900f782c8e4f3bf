"""OnlineToBatch: how far one record moves an increment, and noise that hides it altogether."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replays import assert_same, given, noise_matrix, replay, run, steps_of

from dpjax.problems import RateConstrained, Risk, SimplexRisk
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition
from dpjax.solvers import OnlineToBatch
from dpjax.solvers._increment import (
    CLIPS,
    Gradients,
    IncrementBound,
    _combination,
    clipped_increments,
    clipped_share,
)
from dpjax.solvers._online_learners import LEARNERS
from dpjax.testing import largest_change
from dpjax.testing._trees import QUICK
from dpjax.transforms import BinaryTree, BufferedToeplitz, OuterProduct, SplitNoise

SLOW = [pytest.mark.slow]

# One increment: gradients of any kind, at a step at which all terms count.

P = 3
BOUND = IncrementBound(*(jnp.float32(v) for v in (0.3, 0.8, 1.7, 0.4)))
OFFSET = jnp.array([0.1, -0.3, 0.2], jnp.float32)
OFFSET = OFFSET * 0.4 / jnp.linalg.norm(OFFSET)  # as long as the radius
KINDS = [(clip, norm) for clip in CLIPS for norm in ("l2", "linf") if (clip, norm) != (CLIPS[0], "linf")]

QUICK_SEARCH = [("centred", "l2", False)]


def increment(clip, norm, centre, bound=BOUND):
    """`(records, mask) -> sum`; records hold gradients, or the factors of gradients."""
    aggregator = clipped_increments(bound, clip, norm, centre)

    def of(records, mask):
        gradients = Gradients(records["before"], records["now"])
        if "left" in records:
            gradients = Gradients(*(OuterProduct(records["left"], right) for right in gradients))
        return aggregator.update(gradients, None, mask=mask)[0]

    return of


def centre_of(clip, shape):
    return OFFSET.reshape(shape) if clip == "centred" else jnp.zeros(shape, jnp.float32)


def records_of(rng, factored):
    """Of all sizes and directions, some of both gradients in one direction, and garbage."""
    n = 600
    sizes = 10.0 ** rng.uniform(-3, 4, size=(2, n, 1))
    width = 1 if factored else P
    left = rng.normal(size=(n, P)) * 10.0 ** rng.uniform(-2, 2, size=(n, 1))
    before, change = rng.normal(size=(2, n, width)) * sizes
    along = slice(0, n // 2)
    change[along] = before[along] * 10.0 ** rng.uniform(-3, 4, size=(n // 2, 1))
    if not factored:
        before[:8] = 1e6 * np.array(np.meshgrid(*[(-1, 1)] * P)).reshape(P, -1).T
        change[:8] = before[:8]
    now = before + change
    records = {"left": left, "before": before, "now": now} if factored else {}
    records |= {"before": before, "now": now}
    for row, bad in enumerate([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30, 1e-30], 10):
        for column, leaf in enumerate(records.values()):
            leaf[row + 10 * column, 0] = bad
    return {name: jnp.asarray(leaf, jnp.float32) for name, leaf in records.items()}


each_kind = pytest.mark.parametrize(("clip", "norm"), KINDS)
each_form = pytest.mark.parametrize("factored", [False, True], ids=["dense", "factored"])


@each_form
@each_kind
def test_one_record_moves_an_increment_as_far_as_its_bound(clip, norm, factored, rng):
    of = increment(clip, norm, centre_of(clip, (P,)))
    bound = float(BOUND.sensitivity(clip))
    assert bound == pytest.approx(1.7 if clip == "whole" else 0.3 * 1.7 + 0.8 * 0.4)
    records = records_of(rng, factored)
    others = jax.tree.map(lambda a: a[:5], records_of(rng, factored))

    def added(record):
        batch = jax.tree.map(lambda a, r: jnp.concatenate([a, r[None]]), others, record)
        both = [of(batch, jnp.arange(6) < n) for n in (5, 6)]
        return both[1] - both[0]

    moves = np.asarray(jax.jit(jax.vmap(added), compiler_options=QUICK)(records), np.float64)
    order = 2 if norm == "l2" else np.inf
    sizes = np.linalg.norm(moves, ord=order, axis=1)
    assert sizes.max() <= bound * (1 + 1e-5)
    assert sizes.max() >= bound * (1 - 1e-4)  # so that no smaller bound would do
    furthest = np.linalg.norm(moves - moves[sizes.argmax()], ord=order, axis=1).max()
    assert 2 * bound * 0.95 <= furthest <= 2 * bound * (1 + 1e-5)


@pytest.mark.parametrize(
    ("clip", "norm", "factored"),
    [
        pytest.param(*kind, factored, marks=[] if (*kind, factored) in QUICK_SEARCH else SLOW)
        for kind in KINDS
        for factored in (False, True)
    ],
)
def test_no_neighbour_found_uphill_moves_it_further(clip, norm, factored, rng, key):
    records = jax.tree.map(lambda a: a[50:54], records_of(rng, factored))
    bound = float(BOUND.sensitivity(clip))
    of = increment(clip, norm, centre_of(clip, (P,)))
    for relation, factor in (("add_or_remove_one", 1), ("replace_one", 2)):
        worst = largest_change(of, records, norm=norm, relation=relation, key=key, steps=40)
        assert worst.change <= factor * bound * (1 + 1e-5), worst
        assert worst.change > 0.4 * factor * bound
