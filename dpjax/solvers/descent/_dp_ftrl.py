"""Differentially private follow-the-regularised-leader: descent with correlated noise."""

import math
from dataclasses import dataclass
from typing import Any

from dpjax.core import (
    Sampler,
    Transform,
    check_int,
    check_positive,
    check_unstacked,
    static_field,
)
from dpjax.privacy import Budget, Guarantee, calibrate_noise, check_budget
from dpjax.sampling import DisjointPartition, IndependentPartition
from dpjax.solvers._check_sampler import check_sampler
from dpjax.solvers._summary import register_solver
from dpjax.solvers._swamped import checked_gradients
from dpjax.solvers.descent._dpsgd import DPSGD, DPSGDState, with_defaults
from dpjax.solvers.online._checks import check_participation
from dpjax.transforms import BinaryTree, BufferedToeplitz, NoiseStrategy, correlated_noise

_STRATEGIES = ("buffered", "tree", "variance_reduced_tree")


@register_solver
@dataclass(frozen=True)
class DPFTRL(DPSGD):
    r"""Clipped gradients of one pass, with noise that is correlated over the steps.

    $$ g_t = \frac1m \Big(\sum_{i \in B_t} \mathrm{clip}_C(\nabla\ell_i(\theta_t))
       + z C (\gamma_t - \gamma_{t-1}) \Big), \qquad
       \theta_{t+1} = \theta_t + \eta\, \mathrm{optimizer}(g_t) $$

    The sums $\sum_{i \le t} g_i$, along which descent moves, have little noise, for later noise
    takes back part of the earlier. With the default optimizer and no projection this is
    follow-the-regularised-leader; momentum and other optax transformations work as well.

    Guarantee: l2 sensitivity C of each step's sum under add-or-remove-one, enforced by clipping;
    each record is in one step, so that the event of all is `strategy.event(noise_multiplier)`. No
    amplification by sampling is used. Edge cases and fields are those of `DPSGD`, and

    Attributes:
      strategy: Correlation of the noise, of at least as many steps (static); None for
        `BufferedToeplitz(sampler.steps)`.

    Raises:
      ValueError: If a value is outside its bound, or sampler and strategy do not fit.
      TypeError: If `sampler` is no `Sampler`, `strategy` no `NoiseStrategy`, or `microbatch_size`
        no integer.

    Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, "Practical and private (deep) learning
    without sampling or shuffling", 2021; Denisov, McMahan, Rush, Smith and Thakurta, 2022.
    """

    strategy: NoiseStrategy | None = static_field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_sampler(self.sampler, self.relation)
        if self.strategy is None:
            object.__setattr__(self, "strategy", BufferedToeplitz(self.sampler.steps))
        super().__post_init__()
        check_participation(self.sampler, self.strategy)

    @classmethod
    def for_budget(
        cls,
        problem: Any,
        num_records: int,
        budget: Budget,
        *,
        sampler: Sampler | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        **overrides: Any,
    ) -> "DPFTRL":
        """A solver with defaults that train, its noise calibrated to `budget`.

        Args:
          problem: What will be solved; its number of parameters is used, never data.
          num_records: *Public* bound on the number of records; also the nominal size in the
            normaliser.
          budget: epsilon, delta and relation to meet; without a relation, replace-one.
          sampler: Who takes part; default: disjoint batches.
          batch_size: Records a batch, where `steps` is not given.
          steps: Number of steps; default about the square root of `num_records`.
          **overrides: Any other field; `strategy` also by name: `"buffered"`, `"tree"` or
            `"variance_reduced_tree"`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `sampler` is no `Sampler`, `num_records` or `steps` no integer, or an
            override no field.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.RateConstrained.linear(num_features=5, num_classes=2)
          >>> solver = dpjax.solvers.DPFTRL.for_budget(
          ...     problem, num_records=10_000, budget=dpjax.Budget(1.0, 1e-5))
          >>> solver.guarantee().epsilon(1e-5) <= 1.0
          True
        """
        check_int("num_records", num_records, minimum=1)
        check_positive("batch_size", batch_size)
        relation = check_budget(budget, num_records).relation_or("replace_one").name.lower()
        if sampler is None:
            if steps is None:
                whole = math.isqrt(num_records) if batch_size is None else num_records // batch_size
                steps = max(1, int(whole))
            check_int("steps", steps, minimum=1)
            if steps > num_records:
                raise ValueError(f"steps must be <= num_records = {num_records}, got {steps}")
            if relation == "add_or_remove_one":
                sampler = IndependentPartition(steps, num_records)
            else:
                sampler = DisjointPartition(steps, num_records // steps)
        check_sampler(sampler, relation)
        strategy = _strategy(overrides.pop("strategy", None), sampler.steps)
        if "noise_multiplier" not in overrides:
            overrides["noise_multiplier"] = calibrate_noise(
                lambda z: strategy.event(z, relation),
                budget,
                relation=relation,
                failure_probability=sampler.failure_probability(),
            )
        overrides["strategy"] = strategy
        fields = with_defaults(cls, overrides, sampler, num_records, problem)
        return checked_gradients(cls(sampler, relation=relation, **fields), problem, num_records)

    def make_noise(self) -> Transform:
        """What is added to the sum of clipped gradients."""
        return correlated_noise(self._strategy, self.noise_multiplier * self.clip_norm)

    def redact(self, state: DPSGDState) -> DPSGDState:
        """The state without the noise's buffers, with which noise could be subtracted."""
        return state._replace(noise=None)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_multiplier")
        return Guarantee(
            self._strategy.event(float(self.noise_multiplier), self.relation),
            self.relation,
            self.sampler.failure_probability(),
        )

    @property
    def _strategy(self) -> NoiseStrategy:
        assert self.strategy is not None
        return self.strategy


def _strategy(strategy: Any, steps: int) -> NoiseStrategy:
    if isinstance(strategy, NoiseStrategy):
        return strategy
    if strategy not in (None, *_STRATEGIES):
        raise ValueError(
            f"strategy must be a strategy or one of {list(_STRATEGIES)}, got {strategy!r}"
        )
    if strategy in (None, "buffered"):
        return BufferedToeplitz(steps)
    return BinaryTree(steps, variance_reduced=strategy == "variance_reduced_tree")
