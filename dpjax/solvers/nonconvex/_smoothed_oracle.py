"""Per-record statistics of a smoothed loss, and the gradient estimate from their sum."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import Problem, PyTree
from dpjax.core._pairs import in_dtypes_of
from dpjax.transforms import clip_by_norm, microbatched_sum, smooth_first_order, smooth_zeroth_order
from dpjax.transforms.clipping._leaves import combination

if TYPE_CHECKING:
    from dpjax.solvers.nonconvex._online_to_nonconvex import OnlineToNonconvex

DIRECTIONS = ("shared", "record")
ORACLES = ("first", "zeroth")

_OTHER = 2**31  # no place in a batch


class LossProblem(Problem, Protocol):
    """A problem whose losses may be evaluated alone, as `oracle="zeroth"` does."""

    def per_example_losses(self, params: PyTree, batch: PyTree) -> jax.Array:
        """The loss of each record, `[B]`."""


class Part(NamedTuple):
    """Records of a batch `[B, ...]`, which of them are there, and their places `[B]` in it."""

    batch: PyTree
    mask: jax.Array
    places: jax.Array


class SmoothedOracle(NamedTuple):
    """What is summed over records, and what is made of the sum.

    Attributes:
      solver: Says which records coexist, and whether both points of a change have one direction.
      values: `values(point, batch, places, key) -> [B, *s]`, along the key's directions.
      gradient: `gradient(sum, point, key) -> tree [*p]`.
      zeros: The sum over no records, `[*s]`.
    """

    solver: "OnlineToNonconvex"
    values: Callable[[PyTree, PyTree, jax.Array, jax.Array], PyTree]
    gradient: Callable[[PyTree, PyTree, jax.Array], PyTree]
    zeros: PyTree

    def total(self, point: PyTree, part: Part, clip_norm: ArrayLike, key: jax.Array) -> PyTree:
        """Sum over records of their values at a point, clipped to a norm."""
        return self._sum(
            lambda batch, places: self.values(point, batch, places, key), clip_norm, part
        )

    def change(
        self, before: PyTree, now: PyTree, part: Part, clip_norm: ArrayLike, key: jax.Array
    ) -> PyTree:
        """Sum over records of how their values change between points, clipped to a norm."""
        other = key if self.solver.reuse_directions else jax.random.fold_in(key, _OTHER)

        def values(batch: PyTree, places: jax.Array) -> PyTree:
            old = self.values(before, batch, places, other)
            return combination(-1.0, old, 1.0, self.values(now, batch, places, key))

        return self._sum(values, clip_norm, part)

    def _sum(self, values: Callable[..., PyTree], clip_norm: ArrayLike, part: Part) -> PyTree:
        total = microbatched_sum(
            lambda rows: values(*rows),
            clip_by_norm(clip_norm),
            (part.batch, part.places),
            part.mask,
            size=self.solver.microbatch_size,
            # each microbatch has directions of its own
            consecutive=self.solver.directions == "record",
        )
        # a sum of factored gradients may have an axis of one that the parameters have not
        return jax.tree.map(lambda t, z: t.reshape(z.shape).astype(z.dtype), total, self.zeros)


def make_oracle(solver: "OnlineToNonconvex", problem: LossProblem, point: PyTree) -> SmoothedOracle:
    """The oracle that a solver's fields describe, at points like `point`."""

    def losses(params: PyTree, batch: PyTree) -> jax.Array:
        return problem.per_example_losses(in_dtypes_of(params, problem.init), batch)

    def gradients(params: PyTree, batch: PyTree) -> PyTree:
        return problem.per_example_gradients(in_dtypes_of(params, problem.init), batch)

    radius, count, kind = solver.smoothing_radius, solver.num_directions, solver.directions
    if solver.oracle == "zeroth" and kind == "shared":
        zeroth = smooth_zeroth_order(losses, radius, count)
        return SmoothedOracle(
            solver,
            lambda at, batch, places, key: zeroth.coordinates(at, batch, key=key),
            lambda total, at, key: zeroth.gradient(total, at, key=key),
            jnp.zeros(count, jnp.result_type(float)),
        )
    own: Callable[..., PyTree] = (
        smooth_first_order(gradients, radius, count, directions=kind)
        if solver.oracle == "first"
        else smooth_zeroth_order(losses, radius, count, directions=kind)
    )

    def values(at: PyTree, batch: PyTree, places: jax.Array, key: jax.Array) -> PyTree:
        # records of other microbatches have other directions
        return own(at, batch, key=key if kind == "shared" else jax.random.fold_in(key, places[0]))

    still = jax.tree.map(jnp.zeros_like, point)
    return SmoothedOracle(solver, values, lambda total, at, key: total, still)
