"""Differentially private follow-the-regularised-leader: descent with correlated noise."""

import warnings
from typing import Any, Self

from dpjax.core import Problem, Sampler
from dpjax.privacy import Budget
from dpjax.solvers._check_sampler import check_sampler
from dpjax.solvers._summary import register_solver
from dpjax.solvers.descent._dpsgd import DPSGD
from dpjax.transforms import BufferedToeplitz, NoiseStrategy


@register_solver
class DPFTRL(DPSGD):
    r"""Clipped gradients of one pass, with noise that is correlated over the steps.

    $$ g_t = \frac1m \Big(\sum_{i \in B_t} \mathrm{clip}_C(\nabla\ell_i(\theta_t))
       + z C (\gamma_t - \gamma_{t-1}) \Big), \qquad
       \theta_{t+1} = \theta_t + \eta\, \mathrm{optimizer}(g_t) $$

    The sums $\sum_{i \le t} g_i$, along which descent moves, have little noise, for later noise
    takes back part of the earlier. With the default optimizer and no projection this is
    follow-the-regularised-leader; momentum and other optax transformations work as well.

    Guarantee: l2 sensitivity C of each step's sum under add-or-remove-one, enforced by clipping;
    each record is in one step, so that the event of all is `noise.event(noise_multiplier)`. No
    amplification by sampling is used. Edge cases and fields are those of `DPSGD`, with a `noise`
    that is `BufferedToeplitz(sampler.steps)` unless told; `strategy` is its name before 0.2.

    Raises:
      ValueError: If a value is outside its bound, or sampler and noise do not fit.
      TypeError: If `sampler` is no `Sampler`, `noise` no `NoiseStrategy`, or `microbatch_size`
        no integer.

    Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, "Practical and private (deep) learning
    without sampling or shuffling", 2021; Denisov, McMahan, Rush, Smith and Thakurta, 2022.
    """

    def __init__(
        self, sampler: Sampler, *args: Any, strategy: NoiseStrategy | None = None, **fields: Any
    ) -> None:
        if strategy is not None:
            _warn_of_strategy()
            fields["noise"] = strategy
        if fields.get("noise") is None:
            check_sampler(sampler, fields.get("relation", "add_or_remove_one"))
            fields["noise"] = BufferedToeplitz(sampler.steps)
        super().__init__(sampler, *args, **fields)

    @property
    def strategy(self) -> NoiseStrategy | None:
        """`noise`, by its name before 0.2."""
        _warn_of_strategy()
        return self.noise

    @classmethod
    def for_budget(
        cls,
        problem: Problem,
        num_records: int,
        budget: Budget,
        *,
        noise: NoiseStrategy | str | None = None,
        **overrides: Any,
    ) -> Self:
        """A solver with defaults that train, its noise calibrated to `budget`.

        Args:
          problem: What will be solved; its number of parameters is used, never data.
          num_records: *Public* bound on the number of records; also the nominal size in the
            normaliser.
          budget: epsilon, delta and relation to meet; without a relation, replace-one.
          noise: As in the class, or by name: `"buffered"`, the default, `"tree"` or
            `"variance_reduced_tree"`.
          **overrides: Other fields; also `sampler`, by default of disjoint batches,
            `batch_size`, the records of one, or `steps`, by default the root of `num_records`.

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
        if "strategy" in overrides:
            _warn_of_strategy()
            noise = overrides.pop("strategy")
        noise = "buffered" if noise is None else noise
        return super().for_budget(problem, num_records, budget, noise=noise, **overrides)


def _warn_of_strategy() -> None:
    warnings.warn(
        "strategy is DPFTRL.noise since 0.2: the old name goes in 0.3",
        DeprecationWarning,
        stacklevel=3,
    )
