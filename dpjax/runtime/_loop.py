"""The loop over the steps, in one piece under a transformation and in chunks on the host."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core._devices import running
from dpjax.core._optional import optional
from dpjax.core._records import Records
from dpjax.core._types import PyTree, Solver
from dpjax.runtime._take import take
from dpjax.runtime.devices._placement import Placement


@functools.partial(jax.jit, static_argnames="placement")
def start(
    solver: Solver, problem: PyTree, data: Records, key: jax.Array, placement: Placement | None
) -> Any:
    """The state before the first step."""
    with running(placement):
        state = solver.init(problem, key=key)
        prologue = optional(solver, "prologue")
        if prologue is not None:
            records = jax.tree.map(lambda a: a[: data.num_records], data.arrays)
            state = prologue(problem, records, state)
    return state if placement is None else placement.spread_state(state)


@functools.partial(jax.jit, static_argnames="sensitive")
def scan(
    solver: Solver, problem: PyTree, data: Records, state: PyTree, xs: PyTree, sensitive: bool
) -> tuple[Any, tuple[Any, Any]]:
    """All steps as one `lax.scan`: what a transformation sees, and can differentiate."""

    def body(state: PyTree, x: PyTree) -> tuple[Any, tuple[Any, Any]]:
        return _one_step(solver, problem, data, state, x, sensitive, None)

    return jax.lax.scan(body, state, xs)


@functools.partial(jax.jit, static_argnames=("sensitive", "placement"), donate_argnames="outputs")
def advance(
    solver: Solver,
    problem: PyTree,
    data: Records,
    state: PyTree,
    xs: PyTree,
    outputs: PyTree,
    first: ArrayLike,
    last: ArrayLike,
    sensitive: bool,
    placement: Placement | None,
) -> tuple[Any, PyTree]:
    """Steps `first`, ..., `last - 1`, whose outputs are written into `outputs`.

    The bounds are data, so that every chunk runs the very same program: XLA inlines loops of one
    step and fuses them otherwise, which changes bits.
    """

    def step(i: jax.Array, carry: tuple[Any, PyTree]) -> tuple[Any, PyTree]:
        state, outputs = carry
        x = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), xs)
        state, output = _jitted_step(solver, problem, data, state, x, sensitive, placement)
        return state, jax.tree.map(
            lambda all_, one: jax.lax.dynamic_update_index_in_dim(all_, one, i, 0),
            outputs,
            words(output),
        )

    return jax.lax.fori_loop(first, last, step, (state, outputs))


def blanks(steps: int, shapes: PyTree) -> PyTree:
    """Zeros that `advance` writes the outputs of `steps` steps into."""
    plain = jax.eval_shape(words, shapes)
    return jax.tree.map(lambda shape: jnp.zeros((steps, *shape.shape), shape.dtype), plain)


def _one_step(
    solver: Solver,
    problem: PyTree,
    data: Records,
    state: PyTree,
    x: PyTree,
    sensitive: bool,
    placement: Placement | None,
) -> tuple[Any, tuple[Any, Any]]:
    """The state after a step, and its outputs: released values and raw ones."""
    ordered = optional(solver, "ordered_batches")
    batch, mask = take(solver.sampler, x, data, placement, padded=not ordered)
    if placement is not None and not (ordered and mask.shape[0] % placement.shares):
        batch, mask = placement.spread_batch(batch, mask)
    diagnose = optional(solver, "diagnose") if sensitive else None
    with running(placement):
        raw = diagnose(problem, batch, mask, state) if diagnose else None
        state, info = solver.step(problem, batch, mask, state)
    if placement is not None:
        state = placement.spread_state(state)
    return state, (info, raw)


# traced once, by whoever asks first for its shapes or for the loop
_jitted_step = jax.jit(_one_step, static_argnames=("sensitive", "placement"))


class Job(NamedTuple):
    """One run outside any transformation.

    Attributes:
      solver: The method.
      problem: What it solves.
      data: The data, as arrays of JAX, and how many rows of them are records.
      init_key: Of the state before the first step.
      xs: The sampler's plan.
      sensitive: Whether raw diagnostics are kept.
      placement: How it lies on several devices; None for one.
    """

    solver: Solver
    problem: PyTree
    data: Records
    init_key: jax.Array
    xs: PyTree
    sensitive: bool
    placement: Placement | None

    @property
    def steps(self) -> int:
        """How many there are."""
        return int(self.solver.sampler.steps)

    def start(self) -> Any:
        """The state before the first step."""
        return start(*self.start_arguments())

    def start_arguments(self) -> tuple[Any, ...]:
        """Those of `start`, the static one last."""
        return self.solver, self.problem, self.data, self.init_key, self.placement

    def shapes(self) -> Any:
        """The shapes of `start`'s result, which is not computed."""
        return start.eval_shape(*self.start_arguments())

    def output_shapes(self) -> PyTree:
        """The shapes of one step's outputs."""
        x = jax.eval_shape(lambda xs: jax.tree.map(lambda a: a[0], xs), self.xs)
        given = (self.solver, self.problem, self.data, self.shapes(), x)
        static = (self.sensitive, self.placement)
        shapes: PyTree = _jitted_step.eval_shape(*given, *static)[1]
        return shapes

    def arguments(self, state: PyTree, outputs: PyTree, first: int, last: int) -> tuple[Any, ...]:
        """Those of `advance`, static ones last."""
        given = (self.solver, self.problem, self.data, state, self.xs, outputs)
        # of one type, whatever the default integer is
        return (*given, np.int32(first), np.int32(last), self.sensitive, self.placement)


Program = Callable[[Any, PyTree, int, int], tuple[Any, PyTree]]
"""`program(state, outputs, first, last)` is `advance` for one job."""

Hook = tuple[int, Callable[[int, Any, PyTree], None]]
"""A number of steps, and `look(done, state, outputs)` to call every so many and at the end."""


def in_chunks(
    job: Job, program: Program, done: int, state: PyTree, outputs: PyTree, hooks: Sequence[Hook]
) -> tuple[Any, PyTree]:
    """Runs the steps after the first `done`, stopping for the hooks; without them, at once."""
    while True:
        last = min([job.steps, *(every * (done // every + 1) for every, _ in hooks)])
        state, outputs = program(state, outputs, done, last)  # of no step if nothing is left
        for every, look in hooks:
            if last > done and (last % every == 0 or last == job.steps):
                look(last, state, outputs)
        done = last
        if done == job.steps:
            return state, outputs


def chunk_length(steps: int) -> int:
    """For about 50 chunks."""
    return max(1, -(-steps // 50))


def words(tree: PyTree) -> PyTree:
    """The tree with typed keys as plain words."""
    return jax.tree.map(lambda a: jax.random.key_data(a) if _is_key(a) else a, tree)


def typed(tree: PyTree, like: PyTree) -> PyTree:
    """Takes `words` back, where `like` (arrays or shapes) holds typed keys."""
    impls: list[Any] = []

    def look(leaves: list[Any]) -> None:
        impls.extend(jax.random.key_impl(a) if _is_key(a) else None for a in leaves)

    jax.eval_shape(look, jax.tree.leaves(like))
    leaves, treedef = jax.tree.flatten(tree)
    wrapped = [
        leaf if impl is None else jax.random.wrap_key_data(jnp.asarray(leaf), impl=impl)
        for leaf, impl in zip(leaves, impls, strict=True)
    ]
    return jax.tree.unflatten(treedef, wrapped)


def _is_key(leaf: object) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
