"""What the methods over vertices share: clipped gradients, summed scores, event and sampler."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import check_choice, check_positive, wide
from dpjax.geometry import Polytope, Simplex
from dpjax.privacy import Budget, PureZCDpEvent, check_budget, zcdp_budget
from dpjax.privacy._relations import relation_factor
from dpjax.sampling import (
    DisjointPartition,
    IndependentPartition,
    TaperedPartition,
    poisson_capacity,
)
from dpjax.sampling._capacity import DELTA_SHARE
from dpjax.solvers._check_sampler import check_sampler
from dpjax.transforms import OuterProduct, PackedSigns
from dpjax.transforms.clipping._by_range import range_sum
from dpjax.transforms.clipping._weighted_sum import Pair, add_pairs, pair_of

_SINGLE_PASS = (DisjointPartition, TaperedPartition, IndependentPartition)
_RELATIONS = ("replace_one", "add_or_remove_one", "replace_special")


def coordinates(domain: Any) -> Any:
    """The domain in whose coordinates scores are kept.

    On a polytope a record gives a score to each vertex, and from there on it is a simplex: sums of
    gradients may be far larger than any difference of scores, which they would round.
    """
    return Simplex(domain.num_vertices) if isinstance(domain, Polytope) else domain


def range_sums(
    domains: tuple[Any, ...],
    gradients: tuple[Any, ...],
    mask: jax.Array,
    ranges: tuple[Any, ...],
    weights: tuple[Any, ...],
    assume_bounded: bool,
) -> tuple[Pair, ...]:
    """Weighted sums over the batch of each block's gradients, of bounded range, in `coordinates`.

    One record moves a sum by a vector of range at most its weight times the bound, whatever the
    others are.
    """
    return tuple(
        range_sum(
            _in_coordinates(domain, leaf),
            mask,
            bound,
            coordinates(domain),
            weight=weight,
            clipped=not assume_bounded,
            cut=True,
        )
        for domain, leaf, bound, weight in zip(domains, gradients, ranges, weights, strict=True)
    )


def _in_coordinates(domain: Any, leaf: Any) -> Any:
    if not isinstance(domain, Polytope):
        return leaf

    def scores(rows: Any) -> jax.Array:
        rows = wide(rows.unpack() if isinstance(rows, PackedSigns) else rows)
        return jnp.matmul(rows, domain.vertices.T, precision=jax.lax.Precision.HIGHEST)

    if isinstance(leaf, OuterProduct):
        return leaf._replace(left=scores(leaf.left))
    return scores(leaf)


def shrunk(weight: Any, moved: Any, dtype: Any, logit: float = 0.0, total: float = 0.0) -> Any:
    r"""The weight of a sum, less what rounding may add to the range of its draws.

    A draw's logits are differences from the largest, rounded three times by at most
    $\epsilon / 2$ of themselves. A vertex whose logit is 45 below the largest has a probability of
    3e-20, which is not counted, and the weights of blocks are sums of some tens of terms. So two
    neighbours' logits, moved by a vector of range eta, differ by one of range at most
    $\eta + 300 \epsilon$: two logits of each, off by 68 epsilon. The weight is smaller by
    that share, and by $2^{-18}$ for scales and products: what is drawn is then of range eta.

    Args:
      weight: Of the sum, scalar.
      moved: eta, by which one record moves the logits without rounding, scalar.
      dtype: Of the logits.
      logit: Further roundings of a logit, in units of epsilon.
      total: Roundings of the sum, in units of epsilon times eta.

    Returns:
      The smaller weight; 0 where rounding is all there is.
    """
    eps = float(jnp.finfo(dtype).eps)
    added = (300 + logit) * eps / jnp.maximum(moved, jnp.finfo(dtype).tiny)
    return weight * jnp.maximum(1 - 2.0**-18 - total * eps - added, 0)


def step_weights(
    solver: Any,
    count: jax.Array,
    dtype: Any,
    *,
    gain: Any = 1.0,
    logit: float = 0.0,
    total: float = 0.0,
) -> tuple[Any, ...]:
    """What step `count` multiplies each block's sum of gradients by, but for the sign.

    A record may move the scores by `gain` times the range of its gradient; `logit` and `total` are
    as for `shrunk`.
    """
    share = 1 / divisor(solver.sampler, count, dtype)
    factor = relation_factor(solver.relation) * gain
    return tuple(
        shrunk(size * share, factor * size * share * bound, dtype, logit, total)
        for size, bound in zip(solver.step_size, solver.grad_range, strict=True)
    )


def no_scores(domain: Any) -> Pair:
    """Scores before any record."""
    return pair_of(jnp.zeros(coordinates(domain).dim))


def add_scores(domain: Any, score: Pair, term: Pair, sign: int) -> Pair:
    """The score less `sign` times a term; on the simplex up to a shift that makes the largest 0.

    Draws ignore a common shift, but its digits would be lost to what one record moves.
    """
    total = add_pairs(score, Pair(-sign * term.high, -sign * term.low))
    if not isinstance(coordinates(domain), Simplex):
        return total
    return add_pairs(total, pair_of(jnp.broadcast_to(-jnp.max(total.high), total.high.shape)))


def draw_vertices(key: jax.Array, domain: Any, score: Pair, k: int) -> jax.Array:
    """`k` vertices from the softmax of a block's scores, `[k]` int32."""
    space = coordinates(domain)
    # on a simplex the largest score is 0, and what rounding left over is small against any other
    low = None if isinstance(space, Simplex) else score.low
    return space.sample(key, score.high, k, low=low)


def divisor(sampler: Any, count: jax.Array, dtype: Any) -> jax.Array:
    """The public size of the batch of step `count`."""
    return jnp.asarray(sampler.sizes, dtype)[count]


def draws_event(solver: Any, draws: np.ndarray, weights: np.ndarray | float = 1.0) -> dpe.DpEvent:
    """Event of a run, as the record sees it whose batch lets it see most.

    A record of batch t enters the `draws[t]` that follow it, each of bounded range
    eta = c tau omega weight_t / size_t, which is eta^2 / 8 zero-concentrated and eta-DP. The batch
    of the largest sum of eta may be another one: each draw is charged its share of that.
    """
    sizes = np.asarray(solver.sampler.sizes, float) / weights
    worst = int(np.argmax(draws / np.square(sizes)))
    count = int(draws[worst])
    pure = np.max(draws / sizes) / count
    moved = [
        relation_factor(solver.relation) * float(step) * float(bound)
        for step, bound in zip(solver.step_size, solver.grad_range, strict=True)
    ]
    each = [PureZCDpEvent((move / sizes[worst]) ** 2 / 8, epsilon=move * pure) for move in moved]
    return dpe.ComposedDpEvent([dpe.SelfComposedDpEvent(draw, count) for draw in each])


def available_rho(budget: Budget) -> float:
    """Zero-concentrated budget of a single pass, less what a surplus of records may cost.

    Raises:
      ValueError: If delta is 0, for which passes are not planned.
    """
    if check_budget(budget).delta == 0:
        raise ValueError(
            "delta must be > 0 to plan a single pass, got 0.0: use FrankWolfe.for_budget, or set "
            "step_size yourself and read guarantee().epsilon(0.0)"
        )
    if relation_factor(check_budget(budget).relation_or("replace_one")) == 2:
        return zcdp_budget(budget, relation="replace_one")
    failure = DELTA_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
    return zcdp_budget(budget, failure_probability=failure)


def single_pass_sampler(
    num_records: int, steps: int, budget: Budget, order: str = "random", tail: int = 0
) -> Any:
    """Disjoint tapered batches: cut from an order under replace-one, else independent."""
    if relation_factor(check_budget(budget).relation_or("replace_one")) == 2:
        return TaperedPartition(steps, num_records, order, tail)
    largest = float(
        IndependentPartition(steps, num_records, 1, tapered=True, tail=tail).shares.max()
    )
    capacity = poisson_capacity(
        num_records + 1, largest, steps, delta=budget.delta, epsilon=budget.epsilon
    )
    return IndependentPartition(steps, num_records, capacity, tapered=True, tail=tail)


def check_vertex_fields(solver: Any) -> None:
    """Raises unless sampler, relation, ranges, step sizes and divisor fit together."""
    for name in ("step_size", "grad_range"):
        value = getattr(solver, name)
        if isinstance(value, int | float | jax.Array):
            object.__setattr__(solver, name, (value,))
        check_positive(name, getattr(solver, name))
    if not isinstance(solver.sampler, _SINGLE_PASS):
        names = ", ".join(kind.__name__ for kind in _SINGLE_PASS)
        raise TypeError(
            f"sampler must be one of {names}, since scores remember every batch, "
            f"got {type(solver.sampler).__name__}"
        )
    check_choice("relation", solver.relation, _RELATIONS)
    check_sampler(solver.sampler, solver.relation)
