"""The solve loop: one scan over a static number of steps."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from dpjax.core._checks import check_key, is_traced
from dpjax.core._types import PyTree, Solution, Solver


def solve(
    solver: Solver,
    problem: Any,
    data: PyTree,
    *,
    key: jax.Array,
    progress: bool | None = None,
    sensitive: bool = False,
) -> Solution:
    """Runs `solver` on `problem` and `data`, and says what privacy that cost.

    One `lax.scan` over `solver.sampler.steps` steps, compiled once for all values of the solver's
    and the problem's data fields; `jax.vmap` over keys, solvers and problems works. Nothing in the
    loop stops, raises or branches on private data.

    Guarantee: `solver.guarantee()`, for the release of everything returned except
    `state`'s key and `sensitive`. Records outside the problem's *public* domain (`problem.check`)
    raise before the mechanism starts; that refusal is about the input's domain and is not covered.
    Under `jit` or `vmap` over data nothing raises and such records contribute nothing.

    Args:
      solver: The method, with its public constants.
      problem: Losses and public constants.
      data: Tree of arrays with one leading axis `[n, ...]` (*secret*; `n` is secret too unless the
        relation is replace-one, and must not exceed the sampler's public bound).
      key: Typed key, scalar (*secret*). Never use one key for two runs.
      progress: Whether to show a progress bar; default: on an interactive terminal. The bar is
        moved between chunks of the scan by the host, and does not change the result.
      sensitive: Whether to also return raw, **non-private** diagnostics of every step.

    Returns:
      A `Solution`. Under a transformation that traces the noise fields its guarantee is unknown;
      ask `solver.guarantee()` of each solver outside.

    Raises:
      TypeError: If the key is missing or not typed.
      ValueError: If leading axes differ, or data lie outside the problem's or sampler's domain.

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
    num_records = _num_records(data)
    traced = is_traced(solver, problem, data, key)
    if hasattr(problem, "check") and not is_traced(data):
        problem.check(data)
    data = jax.tree.map(jnp.asarray, data)

    init_key, plan_key = jax.random.split(key)
    xs = solver.sampler.plan(plan_key, num_records)
    if progress is None:
        progress = not traced and sys.stderr.isatty()
    start = _start(solver, problem, data, init_key)
    if progress and not traced:
        state, (info, raw) = _scan_with_bar(solver, problem, data, start, xs, sensitive)
    else:
        state, (info, raw) = _scan(solver, problem, data, start, xs, sensitive)
    params = solver.finalize(problem, state)
    if hasattr(solver, "redact"):
        state = solver.redact(state)
    return Solution(params, _guarantee(solver), info, state, raw if sensitive else None)


@jax.jit
def _start(solver: Any, problem: Any, data: PyTree, key: jax.Array) -> Any:
    state = solver.init(problem, key=key)
    if hasattr(solver, "prologue"):
        state = solver.prologue(problem, data, state)
    return state


@functools.partial(jax.jit, static_argnames="sensitive")
def _scan(
    solver: Any, problem: Any, data: PyTree, state: Any, xs: PyTree, sensitive: bool
) -> tuple[Any, tuple[Any, Any]]:
    num_records = _num_records(data)
    diagnose = getattr(solver, "diagnose", None) if sensitive else None

    def body(state: Any, x: PyTree) -> tuple[Any, tuple[Any, Any]]:
        indices, mask = solver.sampler.batch(x, num_records)
        batch = data if indices is None else jax.tree.map(lambda a: a[indices], data)
        raw = diagnose(problem, batch, mask, state) if diagnose else None
        state, info = solver.step(problem, batch, mask, state)
        return state, (info, raw)

    return jax.lax.scan(body, state, xs)


def _scan_with_bar(
    solver: Any, problem: Any, data: PyTree, state: Any, xs: PyTree, sensitive: bool
) -> tuple[Any, tuple[Any, Any]]:
    steps = solver.sampler.steps
    chunk = _chunk_length(steps)
    outputs = []
    with tqdm(total=steps, unit="step", desc=type(solver).__name__, leave=False) as bar:
        for first in range(0, steps, chunk):
            part = jax.tree.map(lambda a, i=first: a[i : i + chunk], xs)
            state, output = jax.block_until_ready(
                _scan(solver, problem, data, state, part, sensitive)
            )
            outputs.append(output)
            bar.update(min(chunk, steps - first))
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
    return state, joined


def _chunk_length(steps: int, updates: int = 50) -> int:
    """About `updates` chunks; a divisor of `steps` where one is near, so as to compile once."""
    wanted = max(1, -(-steps // updates))
    for length in range(wanted, min(2 * wanted, steps) + 1):
        if steps % length == 0:
            return length
    return wanted


def _num_records(data: PyTree) -> int:
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError("data holds no arrays")
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        shapes = [list(np.shape(leaf)) for leaf in leaves]
        raise ValueError(f"all arrays in data must share one leading axis, got shapes {shapes}")
    return int(sizes.pop()[0])


def _guarantee(solver: Any) -> Any:
    if is_traced(solver):
        return UnknownGuarantee()
    return solver.guarantee()


@jax.tree_util.register_static
class UnknownGuarantee:
    """Stands for the guarantee where the noise itself was traced by a transformation."""

    _why = (
        "the solver's fields were traced by jit or vmap, so its event is unknown here: "
        "call solver.guarantee() on each solver outside the transformation"
    )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownGuarantee)

    def __hash__(self) -> int:
        return hash(UnknownGuarantee)

    def epsilon(self, delta: float) -> float:
        """Raises RuntimeError: see the message."""
        raise RuntimeError(self._why)

    def delta(self, epsilon: float) -> float:
        """Raises RuntimeError: see the message."""
        raise RuntimeError(self._why)
