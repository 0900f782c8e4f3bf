"""One threshold for each group, from one noisy histogram of a trained model's scores."""

import dataclasses
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Sampler,
    check_fields,
    check_int,
    check_key,
    check_nonnegative,
    check_rate,
    check_type,
    check_unstacked,
    derived,
    register_dataclass,
    static_field,
)
from dpjax.privacy import Budget, Guarantee, joint_release
from dpjax.privacy._budget import relation_factor
from dpjax.problems import ByField, RateConstrained
from dpjax.sampling import FullBatch
from dpjax.solvers._request import RELATIONS, check_once, check_values, default_sampler, requested
from dpjax.solvers._summary import register_solver
from dpjax.solvers.descent._dpsgd import DPSGD
from dpjax.transforms.clipping._microbatch import in_equal_parts
from dpjax.transforms.noise import _noisy_counts as counting

_MOST_BINS, _LEAST_BINS = 64, 8
_MOST_NOISE = 0.01  # of a group's share of positives, over all bins


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model whose thresholds are to be chosen.

    Attributes:
      problem: Of two classes under `demographic_parity`.
      params: Trained parameters, a tree like `problem.init`; released already, or public.
    """

    problem: RateConstrained
    params: PyTree

    def check(self, data: PyTree) -> None:
        """Raises ValueError unless the records lie in the problem's public domain."""
        self.problem.check(data)


class ThresholdsState(NamedTuple):
    """State of `GroupThresholds`.

    Attributes:
      histogram: Noisy counts of records by group, label and bin of the score, `[G, 2, bins]`.
      key: For the noise (*secret*).
    """

    histogram: jax.Array
    key: jax.Array


class ThresholdModel(NamedTuple):
    """A model with one threshold for each group.

    Attributes:
      params: Of the model, a tree.
      thresholds: `[G]`; class 1 is predicted where its probability is at least that of the record's
        group, which nothing is where that is 2.
    """

    params: PyTree
    thresholds: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class GroupThresholds:
    r"""Demographic parity of a trained model, by a threshold for each group.

    Scores p(x) of class 1 are counted once, by group z, label and bin, with noise. Those thresholds
    are chosen that make the fewest errors by the noisy counts, scores being uniform within a bin,
    while the groups' rates of class 1 differ by the slack at most:

    $$ \min_t \hat{err}(t) \quad\text{s.t.}\quad \max_z \hat P(p \ge t_z \mid z)
       - \min_z \hat P(p \ge t_z \mid z) \le \min_j \gamma_j $$

    Predicting nothing in any group meets that, whatever the noise. `predict` **needs the group** of
    a record, which rules of the field may forbid. What is solved is a `TrainedModel`, by a run on
    the same records or public; `training` is a `DPSGD` for the rest of a budget.

    Guarantee: one Gaussian release of counts of which a record moves one by 1 under
    add-or-remove-one; noise is rounded to integers, and its sampler's distance declared as failure
    probability. Nothing is claimed of how the model came about: see `compose_guarantees`.

    | input | effect |
    | --- | --- |
    | NaN or inf record, label or group out of range | counts nowhere |
    | a group without records | its threshold is noise, and constrains no other group |
    | noise 0 | thresholds are those of the records; the event is non-private |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      histogram_noise: Scalar standard deviation of a count's noise (data).
      bins: Of scores in [0, 1], equally wide (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Hardt, Price and Srebro, "Equality of opportunity in supervised learning", 2016, for
    thresholds by group; counts and their noise are ours.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    histogram_noise: ArrayLike
    bins: int = static_field(default=_MOST_BINS)
    relation: str = static_field(default="add_or_remove_one")

    def __post_init__(self) -> None:
        check_once(self.sampler)
        check_values(self, nonnegative=("histogram_noise",), relation=RELATIONS)
        check_int("bins", self.bins, minimum=2)

    @classmethod
    def for_budget(
        cls,
        problem: RateConstrained | TrainedModel,
        num_records: int,
        budget: Budget,
        *,
        share: float = 0.1,
        **overrides: Any,
    ) -> "GroupThresholds":
        """A histogram for a share of a budget, of which `training` takes the rest.

        Args:
          problem: `RateConstrained` of two classes under `demographic_parity`, or a
            `TrainedModel` of one.
          num_records: *Public* bound on the number of records.
          budget: epsilon, delta and relation to meet.
          share: Of the precision, in (0, 1); all of the budget is spent at 1 alone.
          **overrides: `bins`, default 64, halved to 8 at least while noise is large; or
            `histogram_noise` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the problem is another.
          TypeError: If an override is no field, or the problem has no rates.

        Example:
          >>> import dpjax
          >>> parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
          >>> problem = dpjax.problems.RateConstrained.linear(5, 2, parity)
          >>> budget = dpjax.Budget(1.0, 1e-5)
          >>> thresholds = dpjax.solvers.GroupThresholds.for_budget(problem, 10_000, budget)
          >>> training = thresholds.training(problem, 10_000, budget, steps=200)
          >>> both = dpjax.privacy.compose_guarantees(training.guarantee(), thresholds.guarantee())
          >>> both.epsilon(1e-5) <= 1.0
          True
        """
        if isinstance(problem, TrainedModel):
            problem = problem.problem
        groups = _num_groups(problem)
        check_nonnegative("slack", problem.constraints.slack)
        check_rate("share", share)
        request = requested(num_records, budget, "add_or_remove_one")
        moved = relation_factor(request.relation)
        failure = moved * counting.MOST_SHORTFALL
        noise = request.noise_multiplier(dp_accounting.GaussianDpEvent, failure)
        noise /= share**0.5
        bins = _MOST_BINS
        while bins > _LEAST_BINS and noise * bins**0.5 > _MOST_NOISE * num_records / groups:
            bins //= 2
        check_fields(cls, overrides, {"bins", "histogram_noise"})
        fields: dict[str, Any] = {"histogram_noise": noise, "bins": bins} | overrides
        return cls(FullBatch(1), relation=request.relation, **fields)

    def training(
        self,
        problem: RateConstrained,
        num_records: int,
        budget: Budget,
        *,
        sampler: Sampler | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        **overrides: Any,
    ) -> DPSGD:
        """A `DPSGD` without constraints; it and this histogram together meet the budget.

        Args:
          problem: As in `for_budget`.
          num_records: As in `for_budget`.
          budget: As in `for_budget`.
          sampler: As in `DPSGD.for_budget`.
          batch_size: As in `DPSGD.for_budget`.
          steps: As in `DPSGD.for_budget`.
          **overrides: As in `DPSGD.for_budget`.

        Returns:
          The solver.

        Raises:
          ValueError: If the histogram leaves nothing of the budget.
        """
        chosen = sampler or default_sampler(num_records, batch_size, steps, budget)
        request = requested(num_records, budget, self.relation, chosen)
        own = self.guarantee()

        def both(noise: float) -> dp_accounting.DpEvent:
            event = chosen.event(joint_release(gaussian=noise))
            return dp_accounting.ComposedDpEvent([event, own.event])

        failure = chosen.failure_probability() + float(own.failure_probability)
        overrides["noise_multiplier"] = request.noise_multiplier(both, failure)
        return DPSGD.for_budget(problem, num_records, budget, sampler=chosen, **overrides)

    def init(self, problem: TrainedModel, *, key: jax.Array) -> ThresholdsState:
        """The state before the step; the key (*secret*) is for the noise."""
        check_key("key", key)
        return ThresholdsState(jnp.zeros((_num_groups(problem.problem), 2, self.bins)), key)

    def step(
        self, problem: TrainedModel, batch: PyTree, mask: jax.Array, state: ThresholdsState
    ) -> tuple[ThresholdsState, None]:
        """Draws the noisy histogram of all records."""
        rates = problem.problem
        size = state.histogram.size

        def cells(part: PyTree, here: jax.Array) -> jax.Array:
            logits = rates.class_logits(problem.params, part["x"])
            group = rates.constraints.part(part)
            valid = here & rates.valid(logits, part) & (group >= 0)
            place = jnp.minimum((_score(logits) * self.bins).astype(jnp.int32), self.bins - 1)
            return jnp.where(valid, (group * 2 + part["y"]) * self.bins + place, size)

        counts = jnp.zeros(size, jnp.int32)
        counts = counts.at[in_equal_parts(cells, batch, mask)].add(1, mode="drop")
        key, draw = jax.random.split(state.key)
        noisy = counting.noisy_counts(draw, counts, self.histogram_noise, self._tables)
        noisy = noisy.astype(state.histogram.dtype)
        return ThresholdsState(noisy.reshape(state.histogram.shape), key), None

    def finalize(self, problem: TrainedModel, state: ThresholdsState) -> ThresholdModel:
        """The model with the thresholds that the noisy counts choose."""
        places = chosen_places(state.histogram, jnp.min(problem.problem.constraints.slack))
        thresholds = jnp.where(places < self.bins, places / self.bins, 2.0)
        return ThresholdModel(problem.params, thresholds)

    def predict(
        self, problem: RateConstrained, model: ThresholdModel, x: PyTree, group: ArrayLike
    ) -> jax.Array:
        """The predicted classes, int `[n]`, of inputs `[n, ...]` of groups `[n]`."""
        score = _score(problem.class_logits(model.params, x))
        return (score >= model.thresholds[jnp.asarray(group)]).astype(int)

    def guarantee(self) -> Guarantee:
        """The guarantee of the histogram (host); raises ValueError for stacked fields."""
        check_unstacked(self, "histogram_noise")
        noise = float(np.asarray(self.histogram_noise))
        failure = relation_factor(self.relation) * counting.noisy_counts_shortfall(noise)
        failure += self.sampler.failure_probability()
        event = self.sampler.event(dp_accounting.GaussianDpEvent(noise))
        return Guarantee(event, self.relation, failure)

    @derived
    def _tables(self) -> counting.CountTables | None:
        return counting.count_tables(self.histogram_noise)


def chosen_places(histogram: jax.Array, width: ArrayLike) -> jax.Array:
    """Where class 1 begins, `[G]` in 0 to `bins`, with fewest errors and rates within `width`.

    Scores count as uniform within a bin.
    """
    sums = jnp.cumsum(histogram[:, :, ::-1], axis=2)
    # from no record on: rates rise
    above = jnp.pad(sums, ((0, 0), (0, 0), (1, 0)))
    size = jnp.sum(histogram, axis=(1, 2))[:, None]
    rates = jnp.clip(above.sum(axis=1) / jnp.maximum(size, 1), 0, 1)
    rates = jax.lax.cummax(rates, axis=1)
    bins = histogram.shape[2]
    edges = bins - jnp.arange(bins + 1, dtype=rates.dtype)
    # without records, any
    rates = jnp.where(size < 1, 1 - edges / bins, rates)
    gain = above[:, 1] - above[:, 0]

    def best(low: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = jnp.stack([low, jnp.minimum(low + width, 1)])

        def of_group(rates: jax.Array, gain: jax.Array) -> tuple[jax.Array, jax.Array]:
            within = (rates >= ends[0]) & (rates <= ends[1])
            gains = jnp.where(within, gain, -jnp.inf)
            gains = jnp.concatenate([gains, jnp.interp(ends, rates, gain)])
            places = jnp.concatenate([edges, jnp.interp(ends, rates, edges)])
            at = jnp.argmax(gains)
            return gains[at], places[at]

        gains, places = jax.vmap(of_group)(rates, gain)
        return jnp.sum(gains), places

    lowest = jnp.concatenate([rates, jnp.maximum(rates - width, 0)]).reshape(-1)
    gains, places = jax.vmap(best)(lowest)
    return places[jnp.argmax(gains)]


def _score(logits: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(logits[:, 1] - logits[:, 0])


def _num_groups(problem: RateConstrained) -> int:
    check_type("problem", problem, RateConstrained, "RateConstrained")
    part = problem.constraints.part if problem.num_constraints else None
    if not isinstance(part, ByField) or problem.constraints.num_classes != 2:
        raise ValueError(
            "problem must have demographic_parity constraints of two classes, got "
            f"{problem.num_constraints} constraints by {part}"
        )
    return part.num_parts
