"""Empirical lower bounds on the epsilon of a solver or of any mechanism, from many runs."""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.audit._events import Level, learn_score, lower_bound_of_scores
from dpjax.core import PyTree, Sampler, Solver, optional, register_dataclass, static_field
from dpjax.core._checks import check_int, check_key, is_key
from dpjax.runtime import solve
from dpjax.runtime._solve import in_public_rows

Score: TypeAlias = Callable[[PyTree], ArrayLike]
Options: TypeAlias = tuple[tuple[str, bool | int], ...]  # of XLA's compiler, with their values

_MOST_NUMBERS = 2**27
_NUMBERS_AT_ONCE = 2**22


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
        return state, (info, [leaf for leaf in leaves if not is_key(leaf)])


@dataclass(frozen=True)
class _Drawn:
    """A sampler whose plan is at hand; all else is the sampler's own."""

    sampler: Sampler
    drawn: PyTree

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def plan(self, key: jax.Array, num_records: int) -> PyTree:
        return self.drawn


def lower_bound(
    solver: Solver,
    problem: PyTree,
    data: PyTree,
    neighbour: PyTree,
    *,
    runs: int,
    delta: float,
    key: jax.Array,
    confidence: float = 0.95,
    score: Score | None = None,
    bound: str = "clopper_pearson",
) -> float:
    r"""A lower bound on a solver's epsilon, from runs on two neighbouring data sets.

    The solver runs `runs` times on each, all in one compiled program (a second where the numbers of
    records differ), and is watched as its guarantee allows: parameters, info and the redacted state
    of *every step*. From half of the runs a score is learnt that tells the two apart, with an event
    of it; the other half says how likely that event is under either. See `lower_bound_of_scores`.

    Guarantee: none, the runs are raw and must not be released. What is returned is above the true
    epsilon with probability at most `1 - confidence`. A value above `solver.guarantee()`'s epsilon
    means a bug, or records that are no neighbours under its relation; one far below means only that
    these neighbours, or these runs, did not show more.

    Args:
      solver: Any solver.
      problem: What it solves.
      data: Tree of leaves `[n, ...]`.
      neighbour: The same but for one record removed, added or replaced. A record that adds nothing
        (all of it NaN, or of gradient 0) may stand for an absent one.
      runs: Runs on each of the two, `>= 20`. They can show an epsilon of about
        `log(runs / 8)` at most.
      delta: In (0, 1). At a small one few runs show little; 1e-2 shows most.
      key: Typed key.
      confidence: In (0, 1).
      score: `score(released) -> scalar`, traceable, of `released.params`, `.info` (leaves
        `[steps, ...]`) and `.states` (a list of leaves `[steps, ...]`); in place of learning.
      bound: `"clopper_pearson"`, valid for all, or `"gdp"`: closer, valid where the trade-off is
        that of two Gaussians.

    Returns:
      The lower bound, a float `>= 0`.

    Raises:
      TypeError: If the key is missing or not typed.
      ValueError: If a value is outside its bound, the data sets differ in more than one record, or
        a run releases too many numbers to keep (then give a `score`).

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(lambda w, record: w @ record, jnp.zeros(2))
      >>> solver = dpjax.solvers.DPSGD(dpjax.sampling.FullBatch(1), 1.0, 1.0, 1.0, 4.0)
      >>> data = jnp.zeros((4, 2)).at[0].set(1.0)
      >>> shown = dpjax.audit.lower_bound(
      ...     solver, problem, data, data[1:], runs=2000, delta=1e-2, key=jax.random.key(0))
      >>> 0.8 < shown < solver.guarantee().epsilon(1e-2)
      True

    Source: Jagielski, Ullman and Oprea 2020; Nasr et al. 2021 for the white-box view.
    """
    level = Level(delta, confidence, bound)
    check_neighbours(data, neighbour)
    check = optional(problem, "check")
    if check is not None:
        check(data)
        check(neighbour)
    watched = Mechanism(watch, score, (solver, problem))
    return _compare(watched, (data, neighbour), runs, key, level)


def mechanism_lower_bound(
    mechanism: Callable[[PyTree, jax.Array], PyTree],
    data: PyTree,
    neighbour: PyTree,
    *,
    runs: int,
    delta: float,
    key: jax.Array,
    confidence: float = 0.95,
    score: Score | None = None,
    bound: str = "clopper_pearson",
) -> float:
    """The same as `lower_bound`, for any function: a transform, a chain, a training loop.

    Guarantee: none, the runs are raw and must not be released. What is returned is above the true
    epsilon of the mechanism, as to these two data sets, with probability at most `1 - confidence`.

    Args:
      mechanism: `mechanism(data, key) -> tree of released arrays`, traceable.
      data: Tree of arrays.
      neighbour: What counts as its neighbour is the caller's to say; nothing is checked.
      runs: Runs on each of the two, `>= 20`.
      delta: In (0, 1).
      key: Typed key.
      confidence: In (0, 1).
      score: `score(released) -> scalar`, traceable; default: one is learnt.
      bound: `"clopper_pearson"` or `"gdp"`.

    Returns:
      The lower bound, a float `>= 0`.

    Raises:
      TypeError: If the key is missing or not typed.
      ValueError: If a value is outside its bound.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> noise = dpjax.transforms.add_laplace(1.0)
      >>> def mechanism(x, key):
      ...     return noise.update(x, noise.init(x), key=key)[0]
      >>> shown = mechanism_lower_bound(
      ...     mechanism, jnp.zeros(1), jnp.ones(1), runs=20_000, delta=1e-6, key=jax.random.key(0))
      >>> 0.8 < shown < 1.0  # it is 1-DP
      True
    """
    level = Level(delta, confidence, bound)
    return _compare(Mechanism(mechanism, score), (data, neighbour), runs, key, level)


class Released(NamedTuple):
    """What the adversary of a solver sees of a run; see `lower_bound`."""

    params: PyTree
    info: PyTree
    states: list[jax.Array]


def watch(
    solver: Solver, problem: PyTree, data: PyTree, key: jax.Array, plan: PyTree = None
) -> Released:
    """What is seen of one run; `plan` holds its batches where they are drawn on the host."""
    solution = solve(Exposed(solver, plan), problem, data, key=key)
    return Released(solution.params, *solution.info)


def _compare(
    mechanism: "Mechanism", both: tuple[PyTree, PyTree], runs: int, key: jax.Array, level: Level
) -> float:
    keys = jax.random.split(check_key("key", key), 2)
    check_int("runs", runs, minimum=20)
    data = [jax.tree.map(jnp.asarray, one) for one in both]
    first, second = (mechanism.collect(*each, runs) for each in zip(data, keys, strict=True))
    if mechanism.score is None:
        first, second = learnt_scores(first, second, level)
    return lower_bound_of_scores(first, second, **dataclasses.asdict(level))


def learnt_scores(
    first: np.ndarray, second: np.ndarray, level: Level
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of released values `[runs, F]`, learnt from the first half of the runs."""
    half = len(first) // 2
    learnt = learn_score(first[:half], second[:half], level)
    return learnt(first), learnt(second)


@register_dataclass
@dataclass(frozen=True)
class Mechanism:
    """`apply(*subject, data, key)`, and a score of what it releases, if one is given."""

    apply: Callable[..., PyTree] = static_field()
    score: Score | None = static_field(default=None)
    subject: tuple[PyTree, ...] = ()

    def collect(self, data: PyTree, key: jax.Array, runs: int, options: Options = ()) -> np.ndarray:
        """What `runs` runs release, `[runs, F]` float64, or their scores `[runs, 1]`."""
        if self.subject:  # as `solve` would, where the solver is not traced
            data = in_public_rows(self.subject[0], data)
        shape_key, plan_key, run_key = jax.random.split(key, 3)
        impl = jax.random.key_impl(key)
        # of this key only the shape of what would be drawn is asked
        words = jax.random.key_data(jax.random.key(0, impl=impl))[None]
        once = functools.partial(_collect, impl=impl, chunk=1)
        out = jax.eval_shape(once, self, data, (words, self._host_plans(data, shape_key, 1)))
        if self.score is not None and out.size != 1:
            raise ValueError(f"score must return a scalar, got {out.size} numbers")
        if runs * out.size > _MOST_NUMBERS:
            raise ValueError(
                f"a run releases {out.size} numbers, {runs} runs {runs * out.size}, "
                f"which must be <= {_MOST_NUMBERS}: give a `score`, or fewer runs"
            )
        size = out.size + sum(leaf.size for leaf in jax.tree.leaves(data))
        chunk = int(np.clip(_NUMBERS_AT_ONCE // size, 1, min(runs, 256)))
        whole = -(-runs // chunk) * chunk  # a rest would be compiled a second time
        # as plain words: the checker of reused keys takes a slice for a use
        words = jax.random.key_data(jax.random.split(run_key, whole))
        drawn = words, self._host_plans(data, plan_key, whole)
        made = _jitted(options)(self, data, drawn, impl, chunk)
        return np.asarray(made, np.float64)[:runs]

    def _host_plans(self, data: PyTree, key: jax.Array, runs: int) -> PyTree:
        """The batches of every run where the sampler draws them on the host, else None."""
        if not self.subject:
            return None
        sampler, size = self.subject[0].sampler, jax.tree.leaves(data)[0].shape[0]
        try:  # draws nothing, but says whether the key may be traced
            jax.eval_shape(lambda: sampler.plan(jax.random.key(0), size))
        except TypeError:
            drawn = [sampler.plan(one, size) for one in jax.random.split(key, runs)]
            return jax.tree.map(lambda *rows: np.stack(rows), *drawn)
        return None


@functools.lru_cache
def _jitted(options: Options) -> Callable[..., jax.Array]:
    return jax.jit(_collect, static_argnames=("impl", "chunk"), compiler_options=dict(options))


def _collect(
    mechanism: Mechanism, data: PyTree, drawn: tuple[jax.Array, PyTree], impl: Hashable, chunk: int
) -> jax.Array:
    def one(run: tuple[jax.Array, PyTree]) -> jax.Array:
        key, plan = jax.random.wrap_key_data(run[0], impl=impl), run[1]
        plans = () if plan is None else (plan,)
        released = mechanism.apply(*mechanism.subject, data, key, *plans)
        leaves = jax.tree.leaves(mechanism.score(released) if mechanism.score else released)
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, float)) for leaf in leaves])

    return jax.lax.map(one, drawn, batch_size=chunk)


def check_neighbours(data: PyTree, neighbour: PyTree) -> None:
    """Raises ValueError unless one record was removed, added or replaced, the others in order."""
    one: Hashable = jax.tree.structure(data)
    other: Hashable = jax.tree.structure(neighbour)
    if one != other:
        raise ValueError(f"data and neighbour must have one structure, got {one} and {other}")
    first, second = _rows(data), _rows(neighbour)
    if len(first) == len(second):
        changed = sum(a != b for a, b in zip(first, second, strict=True))
        if changed > 1:
            raise ValueError(f"neighbour must differ from data in 1 record, got {changed}")
        return
    long, short = sorted((first, second), key=len)[::-1]
    if len(long) != len(short) + 1:
        raise ValueError(
            "neighbour must have one record more or less than data, or as many, got "
            f"{len(second)} and {len(first)}"
        )
    same = next((i for i, row in enumerate(short) if row != long[i]), len(short))
    if long[same + 1 :] != short[same:]:
        raise ValueError("neighbour must be data with one record removed or added, others in order")


def _rows(data: PyTree) -> list[tuple[bytes, ...]]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(data)]
    return [tuple(leaf[i].tobytes() for leaf in leaves) for i in range(len(leaves[0]))]
