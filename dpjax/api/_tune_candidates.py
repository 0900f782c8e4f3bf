"""The candidates of `dpjax.tune`: their choices, and solvers of any noise."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax.core import PyTree, check_int
from dpjax.privacy import Budget, Guarantee
from dpjax.solvers import RateConstrainedSGDA
from dpjax.solvers.descent._dual import default_share, split_noise

Sampled = Callable[[jax.Array], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Candidates:
    """What may be drawn; *public*.

    Attributes:
      choices: What names each in the result.
      units: Their solvers, with noise multiplier 1.
      make: A solver of a choice and its noise, whose defaults may depend on it; None for configured
        solvers.
    """

    choices: list[Any]
    units: list[Any]
    make: Callable[[Any, dict[str, Any]], Any] | None

    def with_noise(self, noise: Sequence[float]) -> list[Any]:
        """The solvers, each with its own noise multiplier."""
        solvers = [with_noise(unit, z) for unit, z in zip(self.units, noise, strict=True)]
        if self.make is None:
            return solvers
        return [self.make(c, _noise_of(s)) for c, s in zip(self.choices, solvers, strict=True)]

    def kinds(self) -> list[int]:
        """For each candidate the first of the same guarantee at equal noise."""
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
    if not (isinstance(given, Mapping) or callable(given)):
        for solver in given:
            if not isinstance(solver, kind):
                raise TypeError(
                    f"candidates must be of {kind.__name__}, got {type(solver).__name__}"
                )
        units = [with_noise(solver, 1.0) for solver in _some(list(given))]
        return Candidates(list(range(len(units))), units, None)
    if isinstance(given, Mapping):
        grid = itertools.product(*given.values())
        choices = [dict(zip(given, values, strict=True)) for values in grid]
    else:
        check_int("number of candidates", number, minimum=1)
        choices = [
            {name: _plain(value) for name, value in given(one).items()}
            for one in jax.random.split(key, number)
        ]

    def make(choice: dict[str, Any], noise: dict[str, Any]) -> Any:
        fixed = sorted(set(choice) & set(noise))
        if fixed:
            raise ValueError(f"candidates must leave {fixed[0]} to the calibration")
        return kind.for_budget(problem, num_records, budget, **choice, **noise)

    units = []
    for choice in _some(choices):
        noise = {"noise_multiplier": 1.0}
        if issubclass(kind, RateConstrainedSGDA):
            noise["histogram_noise"] = 1.0
        unit = make(choice, noise)
        if isinstance(unit, RateConstrainedSGDA):
            share = choice.get("histogram_share") or default_share(unit.sampler.steps)
            table, gradient = split_noise(1.0, share, unit.histogram)
            primal = dataclasses.replace(unit.primal, noise_multiplier=gradient)
            unit = dataclasses.replace(unit, primal=primal, histogram_noise=table)
        units.append(with_noise(unit, 1.0))
    return Candidates(choices, units, make)


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


def _noise_of(solver: Any) -> dict[str, Any]:
    if isinstance(solver, RateConstrainedSGDA):
        table = solver.histogram_noise
        return {"noise_multiplier": solver.primal.noise_multiplier, "histogram_noise": table}
    return {"noise_multiplier": solver.noise_multiplier}


def _some(candidates: list[Any]) -> list[Any]:
    if not candidates:
        raise ValueError("candidates must hold at least one, got none")
    return candidates


def _plain(value: PyTree) -> PyTree:
    """A number of JAX or NumPy as Python's, as fields of solvers and results are."""
    return np.asarray(value).item() if isinstance(value, jax.Array | np.generic) else value
