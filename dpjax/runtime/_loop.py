"""The loop over the steps, in one piece under a transformation and in chunks on the host."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, Sampler, Solver, optional, register_dataclass, static_field
from dpjax.core._checks import is_key
from dpjax.core._records import Records, num_rows, running, whole_rows
from dpjax.runtime.devices._placement import Placement


def take(
    sampler: Sampler, x: PyTree, data: Records, placement: Placement | None, padded: bool = True
) -> tuple[PyTree, jax.Array]:
    """The batch of one step, leaves `[B, ...]`, and its mask `[B]`, in whole blocks of rows.

    A sampler of `shards` draws within equal shares of the rows, one after the other in a batch, and
    so are they taken: where shares lie on devices of their own, no record is moved.

    Args:
      sampler: Which records enter each step.
      x: One slice of the sampler's plan.
      data: Rows `[rows, ...]` (*secret*).
      placement: How they lie on several devices.
      padded: Whether a batch may have rows that pad it, masked.
    """
    rows = num_rows(data.arrays)
    shards = optional(sampler, "shards")
    if shards > 1:
        return _take_by_shards(sampler, x, data, rows)

    def batch(x: PyTree) -> tuple[jax.Array | None, jax.Array]:
        return sampler.batch(x, data.num_records)

    if placement is None or jax.eval_shape(batch, x)[0] is None:
        indices, mask = batch(x)
    else:
        indices, mask = placement.everywhere(batch, x)
    if indices is None and not padded:
        return jax.tree.map(lambda a: a[: data.num_records], data.arrays), mask
    if indices is None:
        padding = jnp.zeros(rows - data.num_records, bool)
        return data.arrays, jnp.concatenate([mask, padding]) if padding.size else mask
    if padded:
        indices, mask = _padded(indices), _padded(mask)
    return jax.tree.map(lambda a: a[indices], data.arrays), mask


def _padded(drawn: jax.Array) -> jax.Array:
    """Indices, or a mask, `[..., B]`, with zeros up to whole blocks of rows."""
    missing = whole_rows(drawn.shape[-1]) - drawn.shape[-1]
    return jnp.pad(drawn, [(0, 0)] * (drawn.ndim - 1) + [(0, missing)])


def _take_by_shards(sampler: Any, x: PyTree, data: Records, rows: int) -> tuple[PyTree, jax.Array]:
    if rows != sampler.rows:
        raise ValueError(
            f"data must have the {sampler.rows} rows of a sampler of {sampler.shards} shards, got "
            f"{rows}: use dpjax.shard_records(data, mesh, rows=sampler.rows)"
        )
    own, mask = map(_padded, sampler.batch_of_shards(x, data.num_records))

    def of_shards(leaf: jax.Array) -> jax.Array:
        parts = leaf.reshape(sampler.shards, rows // sampler.shards, *leaf.shape[1:])
        return jax.vmap(lambda part, i: part[i])(parts, own).reshape(-1, *leaf.shape[1:])

    return jax.tree.map(of_shards, data.arrays), mask.reshape(-1)


@register_dataclass
@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
      solver: The method.
      problem: What it solves.
      data: The data, as arrays of JAX, and how many rows of them are records.
      init_key: Of the state before the first step.
      xs: The sampler's plan.
      sensitive: Whether raw diagnostics are kept.
      placement: How it lies on several devices; None for one, and under a transformation.
    """

    solver: Solver
    problem: PyTree
    data: Records
    init_key: jax.Array
    xs: PyTree
    sensitive: bool = static_field(default=False)
    placement: Placement | None = static_field(default=None)

    @property
    def steps(self) -> int:
        """How many there are."""
        return int(self.solver.sampler.steps)

    def start(self) -> Any:
        """The state before the first step."""
        return start(self)

    def output_shapes(self) -> PyTree:
        """The shapes of one step's outputs."""
        x = jax.eval_shape(lambda xs: jax.tree.map(lambda a: a[0], xs), self.xs)
        shapes: PyTree = _jitted_step.eval_shape(self, start.eval_shape(self), x)[1]
        return shapes


@jax.jit
def start(job: Job) -> Any:
    """The state before the first step."""
    with running(job.placement):
        state = job.solver.init(job.problem, key=job.init_key)
        prologue = optional(job.solver, "prologue")
        if prologue is not None:
            records = jax.tree.map(lambda a: a[: job.data.num_records], job.data.arrays)
            state = prologue(job.problem, records, state)
    return state if job.placement is None else job.placement.spread_state(state)


@jax.jit
def scan(job: Job, state: PyTree, xs: PyTree) -> tuple[Any, tuple[Any, Any]]:
    """These steps as one `lax.scan`: what a transformation sees, and can differentiate."""
    return jax.lax.scan(functools.partial(_one_step, job), state, xs)


@functools.partial(jax.jit, donate_argnames="outputs")
def advance(
    job: Job, state: PyTree, outputs: PyTree, first: ArrayLike, last: ArrayLike
) -> tuple[Any, PyTree]:
    """Steps `first`, ..., `last - 1`, whose outputs are written into `outputs`.

    The bounds are data, so that every chunk runs the very same program: XLA inlines loops of one
    step and fuses them otherwise, which changes bits.
    """

    def step(i: jax.Array, carry: tuple[Any, PyTree]) -> tuple[Any, PyTree]:
        state, outputs = carry
        x = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), job.xs)
        state, output = _jitted_step(job, state, x)
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


def _one_step(job: Job, state: PyTree, x: PyTree) -> tuple[Any, tuple[Any, Any]]:
    """The state after a step, and its outputs: released values and raw ones."""
    solver, problem, placement = job.solver, job.problem, job.placement
    ordered = optional(solver, "ordered_batches")
    batch, mask = take(solver.sampler, x, job.data, placement, padded=not ordered)
    if placement is not None and not (ordered and mask.shape[0] % placement.shares):
        drawn = solver.sampler.slots is not None and not ordered
        batch, mask = placement.spread_batch(batch, mask, drawn=drawn)
    diagnose = optional(solver, "diagnose") if job.sensitive else None
    with running(placement):
        raw = diagnose(problem, batch, mask, state) if diagnose else None
        state, info = solver.step(problem, batch, mask, state)
    if placement is not None:
        state = placement.spread_state(state)
    return state, (info, raw)


# traced once, by whoever asks first for its shapes or for the loop
_jitted_step = jax.jit(_one_step)


Program = Callable[[Any, PyTree, np.int32, np.int32], tuple[Any, PyTree]]
"""`program(state, outputs, first, last)` is `advance` for one job."""

Hook = tuple[int, Callable[[int, Any, PyTree], None]]
"""A number of steps, and `look(done, state, outputs)` to call every so many and at the end."""


def in_chunks(
    job: Job, program: Program, done: int, state: PyTree, outputs: PyTree, hooks: Sequence[Hook]
) -> tuple[Any, PyTree]:
    """Runs the steps after the first `done`, stopping for the hooks; without them, at once."""
    while True:
        last = min([job.steps, *(every * (done // every + 1) for every, _ in hooks)])
        # of no step if nothing is left; bounds of one type, whatever the default integer is
        state, outputs = program(state, outputs, np.int32(done), np.int32(last))
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
    return jax.tree.map(lambda a: jax.random.key_data(a) if is_key(a) else a, tree)


def typed(tree: PyTree, like: PyTree) -> PyTree:
    """Takes `words` back, where `like` (arrays or shapes) holds typed keys."""

    def wrap(leaf: ArrayLike, shape: jax.ShapeDtypeStruct) -> ArrayLike:
        if not is_key(shape):
            return leaf
        impl: list[Any] = []
        jax.eval_shape(lambda key: impl.append(jax.random.key_impl(key)), shape)
        return jax.random.wrap_key_data(jnp.asarray(leaf), impl=impl[0])

    return jax.tree.map(wrap, tree, like)
