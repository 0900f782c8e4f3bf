"""A run from data to solution: one loop over a static number of steps."""

import contextlib
import dataclasses
import functools
import math
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from tqdm.auto import tqdm

from dpjax.core._checks import check_int, check_key, is_real, is_traced
from dpjax.core._records import Records, device_count, filled, num_rows, whole_rows
from dpjax.core._types import GuaranteeLike, PyTree, Solution, Solver, check_sampler, optional
from dpjax.privacy._warnings import PrivacyWarning, warn
from dpjax.runtime import _loop as loop
from dpjax.runtime.checkpoint._checkpoint import resume
from dpjax.runtime.checkpoint._fingerprint import check_alike
from dpjax.runtime.devices._placement import Processes, automatic, placement_of, processes_of

# so many times the expected records, in whole blocks, are the rows of a batch of public shape
_SLACK, _ROWS = 9 / 8, 32
_SPARE, _FEW = 16, 2**16  # as many, or these few more, may be for nothing


def solve(
    solver: Solver,
    problem: PyTree,
    data: PyTree | Records,
    *,
    key: jax.Array,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    sensitive: bool = False,
) -> Solution:
    """Runs `solver` on `problem` and `data`, and says what privacy that cost.

    One loop over `solver.sampler.steps` steps, compiled once for all values of the solver's and the
    problem's data fields; `jax.vmap` over keys, solvers and problems works, and what it sees is one
    `lax.scan`. Nothing in the loop stops, raises or branches on private data.

    With `checkpoint`, a run that was killed at any moment goes on when the same call is made again,
    and its result is the uninterrupted one to the bit, on one kind of device. A folder belongs to
    one run: with another key, data, problem, solver, program, devices or version of JAX the call is
    refused, since one noise on two data sets gives both away. A Python function, a callback or
    a static field, is known by its bytecode and by what it closes over, not by the globals it
    reads. A damaged checkpoint is passed
    over, with a warning, for the last whole one.

    Data and `problem.init` may lie on several devices (`jax.sharding.NamedSharding`, see
    `shard_records`); the run then stays where they lie. A batch is spread like the rows of the
    data, state and noise like the parameters they belong to (or, where another axis of the records
    is spread, like that), and results are those of one device up to the order of sums. Where
    several processes hold the arrays, all make the same call; what they call with is compared, and
    what one of them raises, all raise. Under a transformation the placement of traced arrays cannot
    be seen, and is left to XLA.

    Guarantee: `solver.guarantee()`, for the release of everything returned except
    `state`'s key and `sensitive`. Records outside the problem's *public* domain (`problem.check`)
    raise before the mechanism starts; that refusal is about the input's domain and is not covered.
    Under `jit` or `vmap` over data shapes, types and numbers of records raise as ever, values
    cannot; the problem says what such records then count.

    Args:
      solver: The method, with its public constants.
      problem: Losses and public constants.
      data: Tree of arrays with one leading axis `[n, ...]` (*secret*; `n` is secret too unless the
        relation is replace-one, and must not exceed the sampler's public bound), or `Records`, in
        which rows that pad it take part in nothing. The types of arrays are *public*: make arrays
        of lists and columns of frames with a `dtype`, since theirs follows from the rows.
      key: Typed key, scalar (*secret*). Never use one key for two runs.
      progress: Whether to show a progress bar; default: on an interactive terminal. The bar is
        moved between chunks of the loop by the host, and does not change the result.
      checkpoint: Folder to save the run in and to go on from; made if need be, for its owner alone.
        It is as *secret* as data and key: it holds the state with its key, and nothing is redacted.
        Needs `pip install 'dpjax[checkpoint]'`.
      every: Steps between checkpoints, which may change between attempts; default: for about 50 of
        them. The last two are kept.
      sensitive: Whether to also return raw, **non-private** diagnostics of every step.

    Returns:
      A `Solution`. Under a transformation that traces the noise fields its guarantee is unknown;
      ask `solver.guarantee()` of each solver outside.

    Raises:
      TypeError: If the key is missing or not typed, `solver` is none or its sampler no `Sampler`,
        data hold other things than real numbers, or `checkpoint` is used under `jit` or `vmap`.
      ValueError: If leading axes differ, data lie outside the problem's or sampler's domain, or
        `checkpoint` belongs to another run, or processes make different calls.
      RuntimeError: If another process has `checkpoint` open.
      ImportError: If `checkpoint` is used without orbax.

    Warns:
      PrivacyWarning: If the number of rows follows from that of records, which is secret.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> problem = dpjax.problems.RateConstrained.linear(num_features=2, num_classes=2)
      >>> solver = dpjax.solvers.DPSGD.for_budget(
      ...     problem, num_records=200, budget=dpjax.Budget(1.0, 1e-5), steps=20)
      >>> data = {"x": jnp.ones((200, 2)), "y": jnp.ones(200, int)}
      >>> solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
      >>> solution.guarantee.epsilon(1e-5) <= 1.0
      True
    """
    check_key("key", key)
    if not hasattr(solver, "sampler"):
        raise TypeError(
            "solver must come first, in solve(solver, problem, data, key=key), got "
            f"{type(solver).__name__}"
        )
    check_sampler(solver.sampler)
    # before data are read: what has none is not run
    guarantee: GuaranteeLike = UnknownGuarantee() if is_traced(solver) else solver.guarantee()
    data = data if isinstance(data, Records) else Records(data, num_rows(data))
    if num_rows(data.arrays) < data.num_records:
        raise ValueError(
            f"data must have at least num_records = {data.num_records} rows, "
            f"got {num_rows(data.arrays)}"
        )
    if every is not None:
        check_int("every", every, minimum=1)
        if checkpoint is None:
            raise ValueError(f"every = {every} needs checkpoint, a folder to write to")
    processes = processes_of((data, solver, problem))
    if processes.several and is_traced(key, solver, problem, data, jnp.zeros(())):
        processes = Processes()  # a transformation is no place to talk
    arguments = data.num_records, every, checkpoint is None, sensitive
    check_alike(processes, key=key, solver=solver, problem=problem, arguments=arguments)
    solver, problem, data = automatic((solver, problem, data))
    check = optional(problem, "check")
    if check is not None:
        processes.agree(lambda: check(data.arrays))
    restate = optional(solver, "restate")
    if restate is not None:
        problem, arrays = processes.agree(lambda: restate(problem, data.arrays))
        data = Records(arrays, data.num_records)
    data = in_public_rows(solver, jax.tree.map(_array, data))

    init_key, plan_key = jax.random.split(key)
    # also under a transformation that all arguments are constants of
    traced = is_traced(solver, problem, data, init_key)
    if checkpoint is not None and traced:
        raise TypeError(
            "checkpoint needs concrete values, got traced ones (under jit, vmap or grad): call "
            "solve outside the transformation"
        )
    xs = solver.sampler.plan(plan_key, data.num_records)
    if progress is None:
        progress = not traced and sys.stderr.isatty()
    # all stop at the same steps, though one shows it
    progress = processes.send(np.array(progress)).item()
    if traced:
        job = loop.Job(solver, problem, data, init_key, xs, sensitive)
        state, (info, raw) = loop.scan(job, loop.start(job), xs)
    else:
        xs = jax.tree.map(jnp.asarray, xs)
        placement = placement_of(data.arrays, optional(problem, "init"))
        job = loop.Job(solver, problem, data, init_key, xs, sensitive, placement)
        state, (info, raw) = _run(job, key, progress, checkpoint, every)
    params = solver.finalize(problem, state)
    redact = optional(solver, "redact")
    if redact is not None:
        state = redact(state)
    return Solution(params, guarantee, info, state, raw if sensitive else None)


def in_public_rows(solver: Solver, data: PyTree) -> Records:
    """The records in a number of rows that does not follow from theirs, where theirs is secret.

    By the shape of a batch XLA chooses the order in which a row's products are added, so that one
    more record might change the gradients of all others, if by little; and sums and noise are of
    rows. Where the solver is traced its number is not known: data stay as they are, with a warning
    unless they have more rows than records.
    """
    data = data if isinstance(data, Records) else Records(data, num_rows(data))
    expected, rows = optional(solver, "expected_records"), num_rows(data.arrays)
    if expected is None or np.ndim(expected):
        return data
    if is_traced(expected):
        if rows == data.num_records:
            warn(
                "the rows of data are as many as its records, whose number add-or-remove-one keeps "
                "secret, and under jit or vmap of the solver none is known to fill them up to: "
                "give dpjax.Records of a public number of rows, above num_records",
                PrivacyWarning,
            )
        return data
    most = _ROWS * math.ceil((_SLACK * float(expected) + 16) / _ROWS)
    least = max(1, (most - _FEW) // _SPARE)
    if not least <= data.num_records <= most:
        raise ValueError(
            f"data must have {least} to {most} records where the solver is for about "
            f"{float(expected):g}, since their number is secret under add-or-remove-one: make the "
            "solver for a public number of records that is nearer"
        )
    if rows >= most:
        return data
    if any(len(a.devices()) > 1 for a in jax.tree.leaves(data.arrays) if not is_traced(a)):
        enough = whole_rows(most, device_count(data.arrays))
        raise ValueError(
            f"data on several devices must have at least {most} rows where their number is secret, "
            f"got fewer: use dpjax.shard_records(data, mesh, rows={enough})"
        )
    return Records(filled(data.arrays, most), data.num_records)


def _run(
    job: loop.Job,
    key: jax.Array,
    progress: bool,
    checkpoint: str | os.PathLike[str] | None,
    every: int | None,
) -> tuple[Any, PyTree]:
    """The loop in chunks, which the host looks in between; they change no bit of the result."""
    program: loop.Program = functools.partial(loop.advance, job)
    chunk = loop.chunk_length(job.steps)
    shapes = job.output_shapes()
    hooks: list[loop.Hook] = []
    with contextlib.ExitStack() as stack:
        done, state, outputs = 0, None, loop.blanks(job.steps, shapes)
        if checkpoint is not None:
            resumed = stack.enter_context(resume(checkpoint, key, job, outputs))
            program, done, state, outputs, save = resumed
            hooks.append((every or chunk, save))
        if done == 0:
            state = job.start()
        if progress:
            name = type(job.solver).__name__
            hidden = not processes_of(job).is_first
            bar = tqdm(
                total=job.steps, initial=done, unit="step", desc=name, leave=False, disable=hidden
            )
            stack.enter_context(bar)
            hooks.append((chunk, functools.partial(_move, bar)))
        state, outputs = loop.in_chunks(job, program, done, state, outputs, hooks)
    return state, loop.typed(outputs, shapes)


def _move(bar: tqdm, done: int, state: PyTree, outputs: PyTree) -> None:
    jax.block_until_ready((state, outputs))
    bar.update(done - bar.n)


def _array(leaf: ArrayLike) -> jax.Array:
    """A leaf of data as JAX takes it: of real numbers, in this machine's byte order."""
    array: Any = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if not is_real(array):
        raise TypeError(f"data must hold real numbers, got an array of {array.dtype}")
    if isinstance(leaf, jax.Array):
        return leaf
    return jnp.asarray(array.astype(array.dtype.newbyteorder("="), copy=False))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class UnknownGuarantee:
    """Stands for the guarantee where the noise itself was traced by a transformation."""

    _why = (
        "the solver's fields were traced by jit or vmap, so its event is unknown here: "
        "call solver.guarantee() on each solver outside the transformation"
    )

    def __repr__(self) -> str:
        return f"UnknownGuarantee: {self._why}"

    def epsilon(self, delta: float) -> float:
        """Raises RuntimeError at any `delta`: see the message."""
        raise RuntimeError(self._why)

    def delta(self, epsilon: float) -> float:
        """Raises RuntimeError at any `epsilon`: see the message."""
        raise RuntimeError(self._why)
