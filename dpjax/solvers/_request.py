"""Shared parts of solvers: checks of fields, samplers and noise, and what `for_budget` asks."""

import contextlib
import contextvars
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from dp_accounting import DpEvent
from jax.typing import ArrayLike

from dpjax.core import (
    Problem,
    PyTree,
    Sampler,
    Solver,
    check_choice,
    check_fields,
    check_int,
    check_nonnegative,
    check_positive,
    is_traced,
    optional,
)
from dpjax.core import check_sampler as check_is_sampler
from dpjax.privacy import (
    Budget,
    RelationLike,
    calibrate_noise,
    check_budget,
    joint_release,
    resolve_relation,
)
from dpjax.privacy._budget import relation_factor, relation_name
from dpjax.privacy._warnings import warn_of_noise
from dpjax.problems import QueryRelease
from dpjax.sampling import (
    CyclicPoisson,
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    Participation,
    PoissonSampler,
)
from dpjax.sampling._participation import every_step, one_step, participation_of
from dpjax.transforms import Banded, BinaryTree, BufferedToeplitz, NoiseStrategy, is_every_step

STRATEGIES = ("buffered", "tree", "variance_reduced_tree")
_Value = TypeVar("_Value")
RELATIONS = ("replace_one", "add_or_remove_one", "replace_special")
_Solver = TypeVar("_Solver")
_Sized = TypeVar("_Sized", PoissonSampler, CyclicPoisson, IndependentPartition)
_MOST_NOISE = 4.0
_comparing = contextvars.ContextVar("_comparing", default=False)
_REMEDY = "ask for a larger epsilon, or use more records"


def check_sampler(sampler: Sampler, relation: RelationLike) -> None:
    """Raises unless this is a sampler whose event holds under the relation.

    Raises:
      TypeError: If it lacks something of a `Sampler`.
      ValueError: If its event does not hold under the relation.
    """
    check_is_sampler(sampler)
    sampler.check_relation(resolve_relation(relation))


def check_participation(sampler: Sampler, noise: NoiseStrategy) -> None:
    """Raises an error unless the noise is made for what the sampler runs."""
    stated, name = participation_of(sampler), type(sampler).__name__
    sizes = np.asarray(getattr(sampler, "sizes", 1.0))
    if stated is None or np.ptp(sizes) > 1e-6 * np.max(sizes):
        raise ValueError(
            "sampler must have batches of one size and state its participation, as FullBatch, "
            f"RepeatedPartition and CyclicPoisson do, with correlated noise, got {sampler!r}"
        )
    if not isinstance(noise, NoiseStrategy):
        raise TypeError(f"the noise must be a strategy such as BufferedToeplitz, got {noise!r}")
    if noise.num_steps < sampler.steps:
        raise ValueError(
            f"noise.num_steps must be >= sampler.steps = {sampler.steps}, got {noise.num_steps}"
        )
    own = made_for(noise)
    if isinstance(noise, Banded):
        if stated.kind == "cyclic" and stated.most > 1 and own.separation > stated.separation:
            raise ValueError(
                f"bands must be <= groups = {stated.separation} with {name}, got {own.separation}"
            )
        own = dataclasses.replace(own, most=max(own.most, stated.most))
    elif stated.rate < 1:
        raise ValueError(
            f"no amplification is known for {type(noise).__name__}: use RepeatedPartition or a "
            f"Banded strategy with CyclicPoisson, got {name}"
        )
    if not stated.within(own):
        raise ValueError(
            f"noise is for at most {own.most} participations {own.separation} steps apart, but "
            f"{name} lets a record take part {stated.most} times {stated.separation} apart"
        )


def check_one_or_every_step(sampler: Sampler, noise: NoiseStrategy) -> None:
    """`check_participation`, and raises but for one pass, or full batches and noise for them."""
    full, stated = isinstance(sampler, FullBatch), participation_of(sampler)
    if not full and stated is not None and stated.most > 1:
        raise ValueError(
            "sampler must be FullBatch, or a partition in which each record is in one step, "
            f"got {sampler!r}"
        )
    if full and isinstance(noise, NoiseStrategy) and not is_every_step(noise):
        raise ValueError(
            "noise must be SplitNoise with FullBatch, where records are in every step, "
            f"got {noise!r}"
        )
    check_participation(sampler, noise)


def event_of_run(
    sampler: Sampler, noise: NoiseStrategy | None, noise_multiplier: float, relation: str
) -> DpEvent:
    """The event of noise that was found to be made for what the sampler runs, or independent."""
    if noise is None:
        return sampler.event(joint_release(gaussian=noise_multiplier))
    if isinstance(noise, Banded):
        return noise.event(noise_multiplier, relation, participation_of(sampler))
    return noise.event(noise_multiplier, relation)


def made_for(noise: NoiseStrategy) -> Participation:
    """The steps of one record for which a strategy's event holds: one, unless it says."""
    if is_every_step(noise):
        return every_step(noise.num_steps)
    return getattr(noise, "participation", None) or one_step(noise.num_steps)


def distribution_of(noise: NoiseStrategy) -> str:
    """Of a strategy's draws: `"gaussian"`, or the norm in whose exponential they are drawn."""
    return getattr(noise, "distribution", "gaussian")


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
            event, self.budget, relation=self.relation, failure_probability=failure_probability
        )

    def noise_of_run(self, sampler: Sampler, noise: NoiseStrategy | None = None) -> float:
        """The least of noise of a strategy, or independent, for what the sampler runs."""
        return self.noise_multiplier(
            lambda z: event_of_run(sampler, noise, z, self.relation), sampler.failure_probability()
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
        return with_room(IndependentPartition(steps, n), self.budget)


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
) -> str:
    """The relation that `kind.for_budget` is to meet; checks what was asked of it."""
    check_fields(kind, overrides, known)
    return relation_name(check_budget(budget, num_records).relation_or("replace_one"))


def default_sampler(
    num_records: int,
    batch_size: float | None,
    steps: int | None,
    budget: Budget,
    most: int = 1024,
) -> PoissonSampler:
    """Poisson batches of an expected size, by default a sixteenth, from 256 to `most`."""
    check_int("num_records", num_records, minimum=1)
    if batch_size is None:
        batch_size = float(min(num_records, min(most, max(256, num_records // 16))))
    check_positive("batch_size", batch_size)
    if batch_size > num_records:
        raise ValueError(f"batch_size must be <= num_records = {num_records}, got {batch_size}")
    steps = 1000 if steps is None else steps
    return with_room(PoissonSampler(batch_size / num_records, steps, num_records), budget)


def with_room(sampler: _Sized, budget: Budget) -> _Sized:
    """More slots, where those by default would cost a budget of small delta or large epsilon much.

    Slots shape programs, so they are alike for all epsilons up to 10, to 20, to 40 and so on: a
    sweep over these compiles once.
    """
    if check_budget(budget).delta == 0:
        return sampler
    epsilon = 10.0
    while epsilon < budget.epsilon < math.inf:
        epsilon *= 2
    needed = sampler.capacity_for(min(1e-5, 10 * budget.delta), epsilon)
    return dataclasses.replace(sampler, capacity=max(sampler.capacity, needed))


def stated(problem: object, name: str, default: _Value) -> _Value:
    """A public constant of the problem, or a default where it states none."""
    value = optional(problem, name)
    return default if value is None else value


def named_strategy(
    noise: NoiseStrategy | str, steps: int, *, exponent: float = 0.0, pure: str | None = None
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


@contextlib.contextmanager
def candidates() -> Iterator[None]:
    """Within it nothing is warned of: solvers are compared, and may not be chosen."""
    token = _comparing.set(True)
    try:
        yield
    finally:
        _comparing.reset(token)


def checked_gradients(
    solver: _Solver, problem: Problem, num_records: int, gain: float | None = None
) -> _Solver:
    r"""Warns where the mean of all noisy gradients is far more noise than it can be signal.

    A mean of b clipped gradients is at most C long, and so is the mean of T of these, wherever they
    are taken. Independent noise makes that of norm about

    $$ r\,C, \qquad r = \frac{z \sqrt{d}}{b \sqrt{T}} $$

    longer; of correlated noise, $\sqrt T$ is $T / \sigma_T$ with $\sigma_T$ the deviation of the
    sum's noise, and where changes of gradients of all records are released it is 1. From r = 1 on
    noise is more than any signal; then only directions that many records share are learned, in each
    of which the noise is $r / \sqrt d$. The warning is for $r \ge 4$. There, of logistic regression
    on 10 to 1000 features, 300 and 3000 records and epsilon 0.01 to 3, the loss fell by 5% or less
    of what it can where labels follow from all features or from 5 directions, and 49 to 58% of the
    labels were right; classes that one direction sets apart are learned still.

    Guarantee: none is given; nothing is released.

    Args:
      solver: Of clipped gradients in the l2 norm, or with a `primal` that is.
      problem: Its number of parameters d is used (*public*).
      num_records: *Public* number of records; b is its expected share.
      gain: What stands for $\sqrt T$; None for that of the noise.

    Returns:
      The solver.

    Warns:
      NoiseWarning: If r >= 4.
    """
    descent: Any = getattr(solver, "primal", solver)
    z, sampler = descent.noise_multiplier, descent.sampler
    if is_traced(z, num_records) or np.shape(z) != () or getattr(descent, "norm", "l2") != "l2":
        return solver
    strategy, steps = getattr(descent, "noise", None), sampler.steps
    if gain is None:
        gain = math.sqrt(steps)
        if strategy is not None:
            gain = 1.0 if is_every_step(strategy) else steps / float(strategy.prefix_stddev()[-1])
    batch = num_records * sampler.participation_rate(num_records)
    ratio = float(z) * math.sqrt(problem.num_params) / (batch * gain)
    if ratio >= _MOST_NOISE:
        warn_of_noise(
            f"the noise in the mean of all gradients of the run is {ratio:.2g} times as long as "
            f"that mean can be, with {problem.num_params} parameters and num_records = "
            f"{num_records}: but for what nearly all records have in common, nothing is learned; "
            f"{_REMEDY} or fewer parameters"
        )
    return solver


def within_budget(solver: Solver, budget: Budget, overrides: dict[str, Any], own_risk: str) -> None:
    """Raises where fields that were given cost more than the budget, but for the noise itself.

    Args:
      solver: Of these fields.
      budget: What was asked for.
      overrides: The fields that were given.
      own_risk: The one that sets the noise, which may be given at the caller's own risk.

    Raises:
      ValueError: If it exceeds the budget.
    """
    if not overrides or own_risk in overrides or is_traced(solver):
        return
    epsilon = solver.guarantee().epsilon(budget.delta)
    if epsilon > budget.epsilon * (1 + 1e-9):
        raise ValueError(
            f"epsilon would be {epsilon:.4g} at delta {budget.delta:g}, above the budget's "
            f"{budget.epsilon:g}, with {', '.join(sorted(overrides))} as given: leave that out, or "
            f"give {own_risk} too"
        )


def checked_answers(solver: _Solver, noise: ArrayLike, problem: QueryRelease) -> _Solver:
    """Warns where the noise in every answer is as large as the range of answers.

    Args:
      solver: Of answers to queries.
      noise: Standard deviation, or scale, of the noise in answers or cells (*public*).
      problem: `QueryRelease`.

    Returns:
      The solver.

    Warns:
      NoiseWarning: If the least noise is at least the range of answers.
    """
    if is_traced(noise, problem):
        return solver
    # from 0.7 on no method was closer to the truth than the uniform distribution: marginals of two
    # attributes, 100 and 1000 records, epsilon 0.01 to 1
    least, largest = float(np.min(noise)), problem.sensitivity("replace_one").value_range
    # where all answers are one number there is nothing to learn
    if least >= largest > 0 and not _comparing.get():
        warn_of_noise(
            f"the noise in each answer is at least {least:.2g}, and answers range over "
            f"{largest:.2g}, so that hardly anything can be learned: {_REMEDY}"
        )
    return solver


def drawn_noise(scale: ArrayLike, problem: QueryRelease, draws: int) -> ArrayLike:
    r"""Noise in an answer, $\tau \sqrt{m / T}$ or tau, of T draws whose scores have noise of tau.

    Where tau is large, each of m queries is in T gap / (m tau) more of T draws than by chance, give
    or take $\sqrt{T / m}$.
    """
    return scale * math.sqrt(min(1.0, problem.workload.num_queries / draws))


def checked_draws(solver: _Solver, logit_ranges: Sequence[float | jax.Array]) -> _Solver:
    r"""Warns where all vertices are drawn about equally, whatever the data say.

    A softmax of logits of range R gives no vertex more than $e^R$ times the probability of another,
    and on average at most R / 4 of the range of the scores more than a uniform draw would.

    Args:
      solver: That draws vertices.
      logit_ranges: Bound on the range of the logits of each block, at the end (*public*).

    Returns:
      The solver.

    Warns:
      NoiseWarning: If all are below 1.
    """
    if is_traced(logit_ranges) or any(np.shape(each) for each in logit_ranges):
        return solver
    widest = max(map(float, logit_ranges))
    if widest < 1:
        warn_of_noise(
            f"the logits of a draw range over at most {widest:.2g}, so that all vertices are drawn "
            f"about equally and hardly anything can be learned: {_REMEDY}"
        )
    return solver


def checked_payoffs(solver: _Solver, noise: ArrayLike) -> _Solver:
    """The solver; a `NoiseWarning` if noise on all payoffs is 6 or more, of half their interval."""
    if is_traced(noise) or np.shape(noise) != () or _comparing.get():
        return solver
    # there play was at least 0.83 times as far from an equilibrium as uniform play: cores of 3 and
    # 10 strategies among 60 to 300 others that lose to them, and further in games without such
    stddev = np.asarray(noise).item()
    if stddev >= 6:
        warn_of_noise(
            f"the noise in each payoff, all measured at once, is {stddev:.2g} times half their "
            f"interval, so that play is about uniform: {_REMEDY}"
        )
    return solver


def records_in_full(name: str) -> property:
    """`expected_records` of a solver, or of its `primal`, whose field of this name says them."""

    def number(solver: PyTree) -> ArrayLike | None:
        """*Public* number of records, where batches are of all of a secret number; else None."""
        descent: PyTree = getattr(solver, "primal", solver)
        secret = isinstance(descent.sampler, FullBatch) and relation_factor(descent.relation) == 1
        return operator.attrgetter(name)(descent) if secret else None

    return property(number)
