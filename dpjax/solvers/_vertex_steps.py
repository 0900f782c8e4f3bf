"""What the methods over vertices share: clipped gradients, summed scores, event and sampler."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import check_choice, check_positive
from dpjax.geometry import Simplex
from dpjax.privacy import Budget, PureZCDpEvent, check_budget, resolve_relation, zcdp_budget
from dpjax.sampling import (
    DisjointPartition,
    IndependentPartition,
    TaperedPartition,
    poisson_capacity,
)
from dpjax.sampling._capacity import DELTA_SHARE
from dpjax.solvers._check_sampler import check_sampler
from dpjax.transforms import OuterProduct, clip_by_range, weighted_sum
from dpjax.transforms._microbatch import add_compensated

_SINGLE_PASS = (DisjointPartition, TaperedPartition, IndependentPartition)
_RELATIONS = ("replace_one", "add_or_remove_one", "replace_special")


def influence(relation: Any) -> int:
    """By how many records' gradients a batch sum of two neighbours may differ."""
    return 2 if resolve_relation(relation).name == "REPLACE_ONE" else 1


def clipped_sums(
    domains: tuple[Any, ...],
    gradients: tuple[Any, ...],
    mask: jax.Array,
    ranges: tuple[Any, ...],
    assume_bounded: bool,
) -> tuple[jax.Array, ...]:
    """Sum over the batch of each block's gradients, of bounded range or as they are."""
    if assume_bounded:
        return tuple(_masked_sum(leaf, mask) for leaf in gradients)
    return tuple(
        clip_by_range(bound, domain).update(leaf, None, mask=mask)[0]
        for domain, leaf, bound in zip(domains, gradients, ranges, strict=True)
    )


def _masked_sum(leaf: Any, mask: jax.Array) -> jax.Array:
    if isinstance(leaf, OuterProduct):
        return weighted_sum(leaf.left, jnp.where(mask, leaf.right[:, 0], 0))
    return weighted_sum(leaf, mask)


def add_scores(
    domain: Any, score: tuple[jax.Array, jax.Array], term: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The score and a term, compensated; on the simplex up to a shift that makes the largest 0.

    Draws ignore a common shift, but its digits would be lost to what one record moves: gradients
    of 10 times their range, in 300 batches of 50, would leave but two digits of it.
    """
    total, lost = add_compensated(score[0], score[1], term)
    if not isinstance(domain, Simplex):
        return total, lost
    return add_compensated(total, lost, -jnp.max(total))


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
        influence(solver.relation) * float(step) * float(bound)
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
    if influence(check_budget(budget).relation_or("replace_one")) == 2:
        return zcdp_budget(budget, relation="replace_one")
    failure = DELTA_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
    return zcdp_budget(budget, failure_probability=failure)


def single_pass_sampler(
    num_records: int, steps: int, budget: Budget, order: str = "random", tail: int = 0
) -> Any:
    """Disjoint tapered batches: cut from an order under replace-one, else independent."""
    if influence(check_budget(budget).relation_or("replace_one")) == 2:
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
