"""Shared parts of solvers: checks of fields, default relation, single-pass batches, calibration."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from dp_accounting import DpEvent

from dpjax.core import (
    Sampler,
    check_choice,
    check_fields,
    check_int,
    check_nonnegative,
    check_positive,
    optional,
)
from dpjax.core import check_sampler as check_is_sampler
from dpjax.privacy import Budget, RelationLike, calibrate_noise, check_budget
from dpjax.privacy._relations import relation_name
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition, PoissonSampler
from dpjax.transforms import BinaryTree, BufferedToeplitz, NoiseStrategy

STRATEGIES = ("buffered", "tree", "variance_reduced_tree")
_Value = TypeVar("_Value")
RELATIONS = ("replace_one", "add_or_remove_one", "replace_special")


def check_values(
    solver: Any,
    *,
    positive: Iterable[str] = (),
    nonnegative: Iterable[str] = (),
    counts: Iterable[str] = (),
    **choices: Sequence[object],
) -> None:
    """Raises unless the named fields of a solver hold what they may.

    Args:
      solver: A dataclass with these fields.
      positive: Fields of numbers > 0; None passes.
      nonnegative: Fields of numbers >= 0; None passes.
      counts: Fields of integers >= 1; None passes where it is the default.
      **choices: What other fields may be, by field.

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If a value is no number, or a count no integer.
    """
    for name in positive:
        check_positive(name, getattr(solver, name))
    for name in nonnegative:
        check_nonnegative(name, getattr(solver, name))
    unset = {field.name: field.default for field in dataclasses.fields(solver)}
    for name in counts:
        value = getattr(solver, name)
        if value is not None or unset[name] is not None:
            check_int(name, value, minimum=1)
    for name, allowed in choices.items():
        check_choice(name, getattr(solver, name), allowed)


def check_once(sampler: object) -> None:
    """Raises TypeError unless a step of all records is the only one."""
    if not isinstance(sampler, FullBatch) or sampler.steps != 1:
        raise TypeError(f"sampler must be FullBatch(1), since noise is drawn once, got {sampler!r}")


class Request(NamedTuple):
    """What a solver is wanted for, checked; all *public*."""

    num_records: int
    budget: Budget
    relation: str

    def noise_multiplier(
        self, event: Callable[[float], DpEvent], failure_probability: float = 0.0
    ) -> float:
        """The least with which the event, and a failure, meet the budget."""
        return calibrate_noise(
            event,
            self.budget,
            relation=self.relation,
            failure_probability=failure_probability,
        )

    def one_pass(self, steps: int) -> DisjointPartition | IndependentPartition:
        """Equal batches of which each record is in one."""
        check_int("steps", steps, minimum=1)
        n = self.num_records
        if steps > n:
            raise ValueError(f"steps must be <= num_records = {n}, got {steps}, in a single pass")
        if self.relation != "add_or_remove_one":
            return DisjointPartition(steps, n // steps)
        if self.budget.delta == 0:  # nothing may overflow
            return IndependentPartition(steps, n, n + 1)
        return IndependentPartition(steps, n)


def requested(
    num_records: int,
    budget: Budget,
    default: RelationLike | None = None,
    sampler: Sampler | None = None,
) -> Request:
    """The request of a user, with a default relation, or the sampler's, if none is asked for.

    Raises:
      ValueError: If a value is outside its bound, or a given sampler's event does not hold under
        the relation.
      TypeError: If `num_records` is no integer, `budget` no `Budget` or `sampler` no `Sampler`.
    """
    check_int("num_records", num_records, minimum=1)
    if sampler is not None:
        check_is_sampler(sampler)
        default = sampler.default_relation if default is None else default
    relation = check_budget(budget, num_records).relation_or(default or "add_or_remove_one")
    if sampler is not None:
        sampler.check_relation(relation)
    return Request(num_records, budget, relation_name(relation))


def requested_relation(
    kind: type,
    num_records: int,
    budget: Budget,
    overrides: Iterable[str],
    known: Iterable[str] | None = None,
    default: RelationLike = "replace_one",
) -> str:
    """The relation that `kind.for_budget` is to meet; checks what was asked of it."""
    check_fields(kind, overrides, known)
    return relation_name(check_budget(budget, num_records).relation_or(default))


def default_sampler(
    num_records: int, batch_size: float | None, steps: int | None, most: int = 1024
) -> PoissonSampler:
    """Poisson batches of an expected size, by default a sixteenth, from 256 to `most`."""
    check_int("num_records", num_records, minimum=1)
    if batch_size is None:
        batch_size = float(min(num_records, min(most, max(256, num_records // 16))))
    check_positive("batch_size", batch_size)
    if batch_size > num_records:
        raise ValueError(f"batch_size must be <= num_records = {num_records}, got {batch_size}")
    return PoissonSampler(batch_size / num_records, 1000 if steps is None else steps, num_records)


def stated(problem: object, name: str, default: _Value) -> _Value:
    """A public constant of the problem, or a default where it states none."""
    value = optional(problem, name)
    return default if value is None else value


def named_strategy(
    noise: NoiseStrategy | str,
    steps: int,
    *,
    exponent: float = 0.0,
    pure: str | None = None,
) -> NoiseStrategy:
    """The strategy itself, or that of this name for so many steps.

    Args:
      noise: A strategy, `"buffered"`, `"tree"`, `"variance_reduced_tree"`, or `"pure_tree"` where
        `pure` names the distribution of its noise.
      steps: Number of steps.
      exponent: By which the scale grows over the steps.
      pure: As above.

    Raises:
      ValueError: If there is no such name.
    """
    if isinstance(noise, NoiseStrategy):
        return noise
    names = [*STRATEGIES, "pure_tree"] if pure else [*STRATEGIES]
    if noise not in names:
        raise ValueError(f"noise must be a strategy or one of {names}, got {noise!r}")
    if noise == "buffered":
        return BufferedToeplitz(steps)
    if noise == "pure_tree":
        return BinaryTree(steps, exponent=exponent, distribution=pure or "gaussian")
    return BinaryTree(steps, exponent=exponent, variance_reduced=noise != "tree")
