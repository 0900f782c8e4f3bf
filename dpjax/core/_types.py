"""The types every other package speaks: aggregators, samplers, solvers, solutions."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import DpEvent

PyTree = Any
"""A nest of tuples, lists and dicts with arrays as leaves."""

Transform = optax.GradientTransformationExtraArgs
"""A gradient transformation whose `update` takes `key` as a keyword argument."""
_NONE = (
    "init check lipschitz smoothness radius factored_gradients "  # of a problem
    "prologue diagnose redact expected_records restate"  # of a solver
)
_DEFAULTS = dict.fromkeys(_NONE.split()) | {
    "factored": False,  # of a problem
    "domains": (),
    "ordered_batches": False,  # of a solver
    "shards": 1,  # of a sampler
}


class Aggregator(NamedTuple):
    """Reduces per-example values to a bounded-sensitivity sum.

    `update(per_example, state, params=None, *, key, mask, **extra) -> (sum, state)` takes a tree
    with leaves `[B, *p]` and `mask: bool[B]` and gives a tree with leaves `[*p]`. It is always a
    **sum**: the normaliser is a public constant and belongs to the caller.

    `sensitivity(relation)` is the largest change of that sum, in the aggregator's own norm, over
    neighbours under `relation`. Noise is scaled by asking it, never by remembering a number. With
    `rows=B`, the rows of a batch, and the `dtype` of the sum (float32) it is that of the
    floating-point sum, rounding included.

    Attributes:
      init: `init(params) -> state`.
      update: As above.
      sensitivity: As above; takes a relation or its name.
    """

    init: Callable[..., Any]
    update: Callable[..., tuple[PyTree, Any]]
    sensitivity: Callable[..., float]


@runtime_checkable
class Sampler(Protocol):
    """Which records enter each step; the object that runs is the object that is accounted.

    Guarantee: `event` and `failure_probability` are the sampler's own claim. What a solver enforces
    is what one batch releases; how batches compose, and what sampling amplifies, is said here.
    `dpjax.testing.check_sampler` tests a sampler of yours. One more is optional: `participation`, a
    `dpjax.sampling.Participation`, the steps that one record may be in; noise that is correlated
    over the steps asks for it.
    """

    @property
    def steps(self) -> int:
        """Static number of steps."""

    @property
    def slots(self) -> int | None:
        """Static number of rows that `batch` gives, masked ones included; None: all records."""

    @property
    def default_relation(self) -> NeighboringRelation | str:
        """The relation of a guarantee where the user asks for none."""

    def plan(self, key: jax.Array, num_records: int) -> PyTree:
        """What the loop iterates over: a tree with leading axis `[steps]`."""

    def batch(self, x: PyTree, num_records: int) -> tuple[jax.Array | None, jax.Array]:
        """`(indices, mask)` of one step; `indices=None` stands for all records in order."""

    def event(self, step: DpEvent) -> DpEvent:
        """The event of the run, where each step releases `step` from its batch.

        `step` is all that one batch releases, jointly: a `GaussianDpEvent`, or the
        `ComposedDpEvent` of a `LaplaceDpEvent` and a Gaussian. Its noise multipliers are relative
        to the add-or-remove sensitivity, whatever the relation.
        """

    def check_relation(self, relation: NeighboringRelation) -> None:
        """Raises ValueError unless `event` holds under this relation."""

    def participation_rate(self, num_records: int) -> float:
        """Probability that a record is in a batch, on average over the steps; at most this."""

    def failure_probability(self) -> float:
        """Probability, over all steps, that the run deviates from the declared event."""


def check_sampler(sampler: object) -> None:
    """Raises unless this has all that `Sampler` asks for.

    Args:
      sampler: What was given as one.

    Raises:
      TypeError: Naming what it lacks.
    """
    members = [name for name in vars(Sampler) if not name.startswith("_")]
    lacking = [name for name in members if not hasattr(sampler, name)]
    if lacking:
        raise TypeError(
            f"sampler must be a Sampler, got {sampler!r} without {', '.join(lacking)}: see "
            "dpjax.core.Sampler"
        )


class Problem(Protocol):
    """Losses and public constants, as a frozen dataclass registered as a pytree.

    What a solver of gradients asks for; methods over vertices and for queries ask for other
    members, which they name. More are optional, see `dpjax.core.optional`: `check(data)` raises for
    records outside the problem's public domain, `lipschitz`, `smoothness` and `radius` are public
    constants, None where unknown. Solvers enforce by clipping what they rely on.
    """

    @property
    def init(self) -> PyTree:
        """Parameters to start from (*public*)."""

    @property
    def num_params(self) -> int:
        """Number of real parameters."""

    def per_example_gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """Gradients of the loss of each record, `[B, *p]`, each of its own record alone."""

    def project(self, params: PyTree) -> PyTree:
        """The nearest parameters that are allowed."""


class GuaranteeLike(Protocol):
    """What a solution says of its privacy; `dpjax.Guarantee` is the one to use."""

    def epsilon(self, delta: float) -> float:
        """The epsilon held at `delta`."""

    def delta(self, epsilon: float) -> float:
        """The delta held at `epsilon`."""


class Solver(Protocol):
    """A private method: a frozen dataclass registered as a pytree.

    What one would sweep (step sizes, noise scales) is data; what shapes the program (steps,
    capacities) is static, so that a sweep compiles once. Four more methods are optional:
    `restate(problem, arrays) -> (problem, arrays)` converts an equivalent problem and its data,
    record by record, to the form that the solver works on; `prologue(problem, data, state)
    -> state` runs once on the whole data set before the loop and must be covered by the
    guarantee; `diagnose(problem, batch, mask, state) -> tree` computes raw, non-private values
    and runs only under `solve(..., sensitive=True)`; `redact(state) -> state` takes out of the
    last state what the guarantee does not cover. A solver whose `ordered_batches` is True tells
    records apart by their place in a batch; others may get masked rows after them. One whose
    `expected_records` is a *public* number gets as many rows as follow from it, since those of
    a `FullBatch` would be the number of records, secret under add-or-remove-one.
    """

    @property
    def sampler(self) -> Sampler:
        """Which records enter each step."""

    def init(self, problem: Any, *, key: jax.Array) -> PyTree:
        """The state before the first step."""

    def step(
        self, problem: Any, batch: PyTree, mask: jax.Array, state: PyTree
    ) -> tuple[PyTree, PyTree]:
        """One step: `(state, info)`, where `info` holds functions of released values alone."""

    def finalize(self, problem: Any, state: PyTree) -> PyTree:
        """The parameters to return: from the state only, by draws that the event counts or none."""

    def guarantee(self) -> GuaranteeLike:
        """The guarantee, from the same fields that set noise and sampling (host only)."""


class Solution(NamedTuple):
    """What `dpjax.solve` returns.

    Attributes:
      params: The released parameters.
      guarantee: `guarantee.epsilon(delta)` and `guarantee.delta(epsilon)` of the whole run.
      info: Released values of every step, leaves `[steps, ...]`.
      state: The solver's last state, without what the solver redacts. All of it is covered by the
        guarantee but its PRNG key, which must stay *secret*: with it the noise can be subtracted.
      sensitive: Raw values of every step, *not private*; None unless asked for.
    """

    params: PyTree
    guarantee: Any
    info: PyTree
    state: PyTree
    sensitive: PyTree = None

    def __repr__(self) -> str:
        """Guarantee, and shapes of what was released; no values, and nothing that is secret."""
        lines = [f"params {_shapes(self.params)}", f"info {_shapes(self.info)}"]
        lines += [] if self.sensitive is None else ["sensitive: raw values, not private"]
        return "\n  ".join(["Solution", *lines, *repr(self.guarantee).splitlines()])


def _shapes(tree: PyTree) -> str:
    """Names and shapes of the leaves of a tree, or of the first ones."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = [f"{jax.tree_util.keystr(path)} {list(np.shape(leaf))}" for path, leaf in leaves[:6]]
    return ", ".join(named + [f"... {len(leaves)} leaves in all"] * (len(leaves) > 6)).lstrip()


def optional(part: object, name: str) -> Any:
    """An optional member of a problem, a solver or a sampler.

    Of problems: `check`, and the public constants `lipschitz`, `smoothness`, `radius`, `factored`,
    `factored_gradients` and `domains`; of solvers: `prologue`, `diagnose`, `redact` and
    `ordered_batches`; of samplers: `shards`.

    Args:
      part: What may have it.
      name: Its name.

    Returns:
      The member, or what stands for it where there is none: None, `False`, `()` or 1 shard.

    Raises:
      KeyError: If no part has an optional member of this name.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(lambda w, x: w @ x, jnp.zeros(2), lipschitz=1.0)
      >>> optional(problem, "lipschitz"), optional(problem, "radius"), optional(problem, "domains")
      (1.0, None, ())
    """
    return getattr(part, name, _DEFAULTS[name])
