"""A solver as an adversary sees it who is shown every step."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
from jax.dtypes import issubdtype, prng_key

from dpjax.core import PyTree, register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Exposed:
    """The same run, whose `info` is `(info, state)` of every step.

    The state is without PRNG keys and without what the solver redacts: what its guarantee covers.
    With `plan` the batches are given, where the sampler draws them on the host.
    """

    solver: Any
    plan: Any = None

    @property
    def sampler(self) -> Any:
        """The solver's own, or one whose batches are drawn already."""
        sampler = self.solver.sampler
        return sampler if self.plan is None else _Drawn(sampler, self.plan)

    def init(self, problem: Any, *, key: jax.Array) -> Any:
        """As the solver does."""
        return self.solver.init(problem, key=key)

    def prologue(self, problem: Any, data: PyTree, state: Any) -> Any:
        """As the solver does, where it does."""
        if hasattr(self.solver, "prologue"):
            return self.solver.prologue(problem, data, state)
        return state

    def step(self, problem: Any, batch: PyTree, mask: jax.Array, state: Any) -> tuple[Any, Any]:
        """As the solver does, and shows the state."""
        state, info = self.solver.step(problem, batch, mask, state)
        return state, (info, self._shown(state))

    def finalize(self, problem: Any, state: Any) -> PyTree:
        """As the solver does."""
        return self.solver.finalize(problem, state)

    def guarantee(self) -> Any:
        """The solver's own."""
        return self.solver.guarantee()

    def _shown(self, state: Any) -> list[jax.Array]:
        if hasattr(self.solver, "redact"):
            state = self.solver.redact(state)
        return [leaf for leaf in jax.tree.leaves(state) if not issubdtype(leaf.dtype, prng_key)]


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A sampler whose plan is at hand; all else is the sampler's own."""

    sampler: Any
    drawn: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def plan(self, key: jax.Array, num_records: int) -> PyTree:
        del key, num_records
        return self.drawn
