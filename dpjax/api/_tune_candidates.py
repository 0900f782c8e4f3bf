"""The candidates of `dpjax.tune`: their choices, and solvers of any noise."""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax.core import PyTree, Solver, check_int, check_type
from dpjax.privacy import Budget, DeltaWarning, Guarantee
from dpjax.solvers import DPSGD, RateConstrainedSGDA
from dpjax.solvers.descent._rates import default_share, split_noise

Sampled = Callable[[jax.Array], Mapping[str, Any]]
Kind = type | Callable[..., Solver]  # a class of solvers, or a function that makes them

# delta of a run over the total's, for solvers that choose between kinds of noise
_RUN_DELTA = 10.0


@dataclasses.dataclass(frozen=True)
class Candidates:
    """What may be drawn; *public*.

    Attributes:
      choices: What names each in the result.
      units: Their solvers, with noise 1.
      solver: Makes the solver of a candidate, by its index, at a noise, on which its defaults may
        depend.
      by_budget: Whether a part of the budget alone sets its noise; "noise" is then the divisor of
        epsilon.
    """

    choices: list[Any]
    units: list[Any]
    solver: Callable[[int, float], Any]
    by_budget: bool = False

    def __post_init__(self) -> None:
        if not self.units:
            raise ValueError("candidates must hold at least one, got none")

    def guarantee(self, index: int, noise: float) -> Guarantee:
        """The guarantee of one run of a candidate at this noise."""
        if self.by_budget:
            return self.solver(index, noise).guarantee()
        return with_noise(self.units[index], noise).guarantee()

    def with_noise(self, noise: Sequence[float]) -> list[Any]:
        """The solvers, each with its own noise."""
        return [self.solver(index, z) for index, z in enumerate(noise)]

    def kinds(self) -> list[int]:
        """For each candidate the first of the same guarantee at equal noise."""
        if self.by_budget:  # those that agree at one noise may differ at another
            return list(range(len(self.units)))
        first: dict[Guarantee, int] = {}
        return [first.setdefault(unit.guarantee(), i) for i, unit in enumerate(self.units)]


def candidates_of(
    given: Mapping[str, Sequence[Any]] | Sequence[Any] | Sampled,
    kind: Any,
    problem: PyTree,
    num_records: int,
    budget: Budget,
    number: int,
    key: jax.Array,
) -> Candidates:
    """A grid, a list of solvers, or `number` draws of a sampler of overrides."""
    calibrated = has_noise_multiplier(kind)
    if not (isinstance(given, Mapping) or callable(given)):
        if not calibrated:
            raise TypeError(
                f"candidates must be options, by name or from a function of a key: {name_of(kind)} "
                "has no noise_multiplier to be replaced"
            )
        for one in given:
            check_type("candidates", one, kind, f"of {kind.__name__}")
        units = [with_noise(solver, 1.0) for solver in given]
        places = list(range(len(units)))
        return Candidates(places, units, lambda index, noise: with_noise(units[index], noise))
    if isinstance(given, Mapping):
        grid = itertools.product(*given.values())
        choices = [dict(zip(given, values, strict=True)) for values in grid]
    else:
        check_int("number of candidates", number, minimum=1)
        choices = [
            {name: _plain(value) for name, value in given(one).items()}
            for one in jax.random.split(key, number)
        ]

    if not calibrated:
        for_budget = getattr(kind, "for_budget", kind)

        def by_budget(index: int, noise: float) -> Any:
            delta = min(_RUN_DELTA * budget.delta, 0.1)
            part = Budget(budget.epsilon / noise, delta, budget.relation)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeltaWarning)  # the total's is checked
                return for_budget(problem, num_records, part, **choices[index])

        units = [by_budget(index, 1.0) for index in range(len(choices))]
        return Candidates(choices, units, by_budget, True)

    def make(choice: dict[str, Any], noise: dict[str, Any]) -> Any:
        fixed = sorted(set(choice) & set(noise))
        if fixed:
            raise ValueError(f"candidates must leave {fixed[0]} to the calibration")
        return kind.for_budget(problem, num_records, budget, **choice, **noise)

    tables = issubclass(kind, RateConstrainedSGDA)
    noise = {"noise_multiplier": 1.0} | ({"histogram_noise": 1.0} if tables else {})
    units = []
    for choice in choices:
        unit = with_noise(make(choice, noise), 1.0)  # whatever a stranger's class makes of it
        if tables:
            share = choice.get("histogram_share") or default_share(unit.sampler.steps)
            table, gradient = split_noise(1.0, share, unit.histogram)
            unit = dataclasses.replace(unit, histogram_noise=table * (1.0 / gradient))
        units.append(unit)

    def solver(index: int, noise: float) -> Any:
        table = {"histogram_noise": units[index].histogram_noise * noise} if tables else {}
        return make(choices[index], {"noise_multiplier": noise} | table)

    return Candidates(choices, units, solver)


def has_noise_multiplier(kind: Kind) -> bool:
    """Whether one number sets all noise of these solvers; otherwise a budget does."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return False
    known = issubclass(kind, DPSGD | RateConstrainedSGDA)
    return known or "noise_multiplier" in {field.name for field in dataclasses.fields(kind)}


def name_of(kind: Kind) -> str:
    """The name of a class or function, for messages."""
    return getattr(kind, "__name__", repr(kind))


def with_noise(solver: Any, noise: float) -> Any:
    """The solver with this noise multiplier; noise of a table in proportion."""
    if not isinstance(solver, RateConstrainedSGDA):
        return dataclasses.replace(solver, noise_multiplier=noise)
    before = solver.primal.noise_multiplier
    if not before > 0:
        raise ValueError(f"noise_multiplier of a candidate must be > 0, got {before!r}")
    primal = dataclasses.replace(solver.primal, noise_multiplier=noise)
    table = solver.histogram_noise * (noise / before)
    return dataclasses.replace(solver, primal=primal, histogram_noise=table)


def _plain(value: PyTree) -> PyTree:
    """A number of JAX or NumPy as Python's, as fields of solvers and results are."""
    return np.asarray(value).item() if isinstance(value, jax.Array | np.generic) else value
