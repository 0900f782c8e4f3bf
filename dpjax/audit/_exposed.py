"""A solver as an adversary sees it who is shown every step."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.dtypes import issubdtype, prng_key

from dpjax.core import PyTree, Sampler, Solver, optional, register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Exposed:
    """The same run, whose `info` is `(info, state)` of every step; all else is the solver's own.

    The state is without PRNG keys and without what the solver redacts: what its guarantee covers.
    With `plan` the batches are given, where the sampler draws them on the host.
    """

    solver: Solver
    plan: PyTree = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.solver, name)

    @property
    def sampler(self) -> Sampler:
        """The solver's own, or one whose batches are drawn already."""
        sampler = self.solver.sampler
        return sampler if self.plan is None else _Drawn(sampler, self.plan)

    def step(
        self, problem: PyTree, batch: PyTree, mask: jax.Array, state: PyTree
    ) -> tuple[PyTree, PyTree]:
        """As the solver does, and shows the state."""
        state, info = self.solver.step(problem, batch, mask, state)
        redact = optional(self.solver, "redact")
        leaves = jax.tree.leaves(state if redact is None else redact(state))
        return state, (info, [leaf for leaf in leaves if not issubdtype(leaf.dtype, prng_key)])


@dataclass(frozen=True)
class _Drawn:
    """A sampler whose plan is at hand; all else is the sampler's own."""

    sampler: Sampler
    drawn: PyTree

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def plan(self, key: jax.Array, num_records: int) -> PyTree:
        return self.drawn
