"""Differentially private follow-the-regularised-leader: descent with correlated noise."""

import dataclasses
import math
from typing import Any, Self

from dpjax.core import Problem, Sampler, check_choice, check_fields, check_int, check_positive
from dpjax.core import check_sampler as check_is_sampler
from dpjax.core._moved import renamed_fields
from dpjax.privacy import Budget, check_budget
from dpjax.privacy._warnings import warn
from dpjax.sampling import CyclicPoisson, PoissonSampler
from dpjax.sampling._participation import participation_of
from dpjax.solvers._request import STRATEGIES, Request, check_sampler, default_sampler
from dpjax.solvers._summary import register_solver
from dpjax.solvers.descent import _dpsgd_defaults as defaults
from dpjax.solvers.descent._dpsgd import DPSGD
from dpjax.transforms import Banded, BufferedToeplitz, NoiseStrategy

_BANDS = 4  # of banded noise where nobody says how many
_CONSIDERED = "_considered"  # where a solver made for a budget keeps what was considered


@register_solver
@renamed_fields(strategy="noise")
class DPFTRL(DPSGD):
    r"""Clipped gradients, with noise that is correlated over the steps.

    $$ g_t = \frac1m \Big(\sum_{i \in B_t} \mathrm{clip}_C(\nabla\ell_i(\theta_t))
       + z C (\gamma_t - \gamma_{t-1}) \Big), \qquad
       \theta_{t+1} = \theta_t + \eta\, \mathrm{optimizer}(g_t) $$

    The sums $\sum_{i \le t} g_i$, along which descent moves, have little noise, for later noise
    takes back part of the earlier. With the default optimizer and no projection this is
    follow-the-regularised-leader; momentum and other optax transformations work as well.

    Guarantee: l2 sensitivity C of each step's sum under add-or-remove-one, enforced by clipping.
    The sampler says in which steps a record may be, and noise that is not made for them is refused.
    The event of all steps is `noise.event(noise_multiplier)`, without amplification by sampling;
    with `Banded` noise and `CyclicPoisson` it is that of DP-SGD with fewer steps at a higher rate.
    Edge cases and fields are those of `DPSGD`, with a `noise` that is made for the sampler unless
    told: `Banded` of as many bands as there are groups for `CyclicPoisson`, else a
    `BufferedToeplitz`. `strategy` is its name before 0.2.

    Raises:
      ValueError: If a value is outside its bound, or sampler and noise do not fit.
      TypeError: If `sampler` is no `Sampler`, `noise` no `NoiseStrategy`, or `microbatch_size`
        no integer.

    Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, "Practical and private (deep) learning
    without sampling or shuffling", 2021; Denisov, McMahan, Rush, Smith and Thakurta, 2022; several
    epochs: Choquette-Choo et al., 2023.
    """

    def __init__(self, sampler: Sampler, *args: Any, **fields: Any) -> None:
        if fields.get("noise") is None:
            check_sampler(sampler, fields.get("relation", "add_or_remove_one"))
            fields["noise"] = _noise_for(sampler, "auto")
        super().__init__(sampler, *args, **fields)

    @classmethod
    def for_budget(
        cls,
        problem: Problem,
        num_records: int,
        budget: Budget,
        *,
        sampler: Sampler | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        noise: NoiseStrategy | str | None = None,
        bands: int | None = None,
        **overrides: Any,
    ) -> Self:
        """A solver with defaults that train, its noise calibrated to `budget`.

        By default, `noise="auto"`, the number of bands is chosen by the noise that public numbers
        predict, with `CyclicPoisson` batches, against the same batches in every epoch; one band,
        which is the members, the noise and the event of `DPSGD`, unless another has less than 0.95
        times its noise. What was considered is in `plan_report()`.

        A single pass has to be asked for, `epochs=1`: on 1,347 images of digits, epsilon 3, a
        network reaches .60 to .69 in one, and .93 in 30 passes.

        Args:
          problem: What will be solved; its number of parameters is used, never data.
          num_records: *Public* bound on the number of records; also the nominal size in the
            normaliser.
          budget: epsilon, delta and relation to meet. Without a relation: add-or-remove-one with
            `"auto"` and `"banded"` noise, the sampler's where one with groups is given, else
            replace-one.
          sampler: Which records enter each step; default: as the noise asks.
          batch_size: Expected records a batch; default that of `DPSGD`, with `epochs` at most 1024,
            or in a single pass the root of `num_records`.
          steps: Number of steps; default 1000, as for `DPSGD`.
          epochs: How often each record is used on average, in place of `steps`.
          noise: `"auto"`, the default; `"banded"`; `"buffered"`, for a fixed order in every epoch;
            for one pass alone `"tree"` or `"variance_reduced_tree"`; or a strategy.
          bands: Of `"banded"` noise; default 4.
          **overrides: Other fields.

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
          ...     problem, 10_000, dpjax.Budget(3.0, 1e-5), batch_size=256, epochs=2)
          >>> solver.plan_report()["chosen"].startswith("banded")
          True
        """
        if isinstance(noise, str):
            check_choice("noise", noise, ("auto", "banded", *STRATEGIES))
        check_fields(cls, overrides, {f.name for f in dataclasses.fields(cls)})
        if steps is not None and epochs is not None:
            raise ValueError(f"give steps or epochs, got steps={steps} and epochs={epochs}")
        if bands is not None and noise != "banded":
            raise ValueError(f"bands is for noise='banded', got bands={bands} with noise={noise!r}")
        noise = "auto" if noise is None else noise
        considered: tuple[defaults.Plan, ...] = ()
        if sampler is not None:
            check_is_sampler(sampler)
            if epochs is not None:
                raise ValueError(f"epochs are the sampler's, got epochs={epochs} with {sampler!r}")
            if isinstance(sampler, CyclicPoisson):
                relation = budget.relation_or(sampler.default_relation)
                budget = dataclasses.replace(budget, relation=relation)
            noise = _noise_for(sampler, noise, bands)
        elif noise in ("auto", "banded"):
            request = _request(num_records, budget, "add_or_remove_one")
            most = defaults.most_records(problem) if epochs is None else 1024
            plain = default_sampler(num_records, batch_size, steps, budget, most)
            size, total = num_records * plain.rate, plain.steps
            if epochs is not None:
                check_int("epochs", epochs, minimum=1)
                total = max(1, round(epochs * num_records / size))
            if noise == "auto":
                plan, considered = defaults.chosen(request, float(size), int(total))
                sampler, noise = plan.sampler, plan.noise
                overrides.setdefault("noise_multiplier", plan.noise_multiplier)
            else:
                bands = _BANDS if bands is None else bands
                sampler, noise = defaults.banded(request, size, total, bands)
            budget = dataclasses.replace(budget, relation=request.relation)
        elif noise == "buffered" and epochs is not None:
            request = _request(num_records, budget, "replace_one")
            default = default_sampler(num_records, None, None, budget).rate * num_records
            default = math.sqrt(num_records) if epochs == 1 else default
            size = default if batch_size is None else batch_size
            check_positive("batch_size", size)
            sampler, noise = defaults.in_fixed_order(request, size, epochs)
        elif epochs is not None and epochs != 1:
            raise ValueError(f"epochs must be 1 with noise={noise!r}, got {epochs}")
        elif noise == "buffered" and steps is None:
            warn(
                "noise='buffered' will be for 1000 steps in 0.3: ask for epochs=1 for a single "
                "pass, which costs accuracy where several are affordable",
                FutureWarning,
            )
        if isinstance(noise, Banded) and noise.bands == 1:
            defaults.fall_by_default(overrides)
        overrides |= {"sampler": sampler, "batch_size": batch_size, "steps": steps, "noise": noise}
        solver = super().for_budget(problem, num_records, budget, **overrides)
        object.__setattr__(solver, _CONSIDERED, (considered, int(problem.num_params)))
        return solver

    def plan_report(self) -> dict[str, Any]:
        """What was chosen, and from what, by *public* numbers alone; for solvers of `for_budget`.

        Returns:
          `"chosen"`, and `"considered"` with the `"score"` of each candidate, its predicted noise
          over that of one band; `"noise_multiplier"`; the `"equivalent_noise_multiplier"` of
          independent noise with the same mean square noise of the sums; and `"noise_to_signal"`,
          the noise of the last sum over the longest possible drift: near .1 and below a network on
          digits learns well, at .5 hardly.

        Raises:
          ValueError: If the solver was not made by `for_budget`, or changed since.
        """
        if _CONSIDERED not in vars(self):
            raise ValueError("plan_report is of solvers as for_budget makes them")
        considered, size = vars(self)[_CONSIDERED]
        first = considered[0].score if considered else 1.0
        z, noise, steps = float(self.noise_multiplier), self.noise, self.sampler.steps
        assert noise is not None
        drift = float(self.batch_size) * steps
        names = [plan.name for plan in considered if plan.noise == noise]
        return {
            "chosen": names[0] if names else repr(noise),
            "considered": {plan.name: plan.score / first for plan in considered},
            "noise_multiplier": z,
            "equivalent_noise_multiplier": defaults.equivalent_noise(noise, z, steps),
            "noise_to_signal": z * float(noise.prefix_stddev()[steps - 1]) * size**0.5 / drift,
        }


def _request(num_records: int, budget: Budget, default: str) -> Request:
    """Without the warnings, which come where the noise is calibrated."""
    check_int("num_records", num_records, minimum=1)
    return Request(num_records, budget, check_budget(budget).relation_or(default).name.lower())


def _noise_for(
    sampler: Sampler, noise: NoiseStrategy | str, bands: int | None = None
) -> NoiseStrategy | str:
    """Noise of this name for a sampler that was given; what has no pattern of its own stays.

    `"auto"` is what is made for the steps that the sampler states.
    """
    stated = participation_of(sampler)
    if noise == "banded":
        apart = 1 if stated is None else min(stated.separation, _BANDS)
        return Banded(sampler.steps, min(apart, sampler.steps) if bands is None else bands)
    if stated is None:
        return BufferedToeplitz(sampler.steps) if noise == "auto" else noise
    cyclic = stated.kind == "cyclic"
    if noise != "auto" and (noise != "buffered" or cyclic):
        return noise
    if cyclic and not isinstance(sampler, PoissonSampler):
        return Banded(sampler.steps, min(stated.separation, sampler.steps))
    if cyclic or stated.most == 1:
        return BufferedToeplitz(sampler.steps)
    columns = "periodic" if stated.kind == "fixed" else "constant"
    return BufferedToeplitz(
        sampler.steps, participations=stated.most, separation=stated.separation, columns=columns
    )
