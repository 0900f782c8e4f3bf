"""Audits of registered solvers: what each claims against what its runs show."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from tqdm.auto import tqdm

from dpjax.audit._events import Level, distance_of_scores, learn_score, lower_bound_of_scores
from dpjax.audit._lower_bound import Mechanism, learnt_scores, watch
from dpjax.core import PyTree, check_int, check_key, check_positive
from dpjax.testing import Entry, SolverCase
from dpjax.testing._trees import QUICK, field_names

_ROUND = 1000
_SCALES = (1.0, 3.0, 1000.0)


class Audited(NamedTuple):
    """One solver's row.

    Attributes:
      name: Of the registry.
      relation: Under which it claims.
      claimed: Its epsilon at delta.
      shown: The lower bound.
      claimed_distance: Its delta at epsilon 0, which the total variation distance is at most.
      shown_distance: The lower bound on that, for which few runs are enough.
    """

    name: str
    relation: str
    claimed: float
    shown: float
    claimed_distance: float
    shown_distance: float

    @property
    def holds(self) -> bool:
        """Whether the claims are above what was shown."""
        return self.shown <= self.claimed and self.shown_distance <= self.claimed_distance


def audit_registered(
    entries: Iterable[Entry],
    *,
    runs: int = 4000,
    epsilon: float = 4.0,
    delta: float = 1e-2,
    confidence: float = 0.999,
    key: jax.Array,
    progress: bool = False,
) -> list[Audited]:
    """Lower bounds on the epsilon of registered solvers, at the tiny sizes of their cases.

    For each, the noise is set so that the claim is near `epsilon`, and pairs of neighbours with an
    extreme record are tried in 1000 runs; the pair told apart best is taken for `runs` new ones.

    Args:
      entries: Of kind `"solver"`.
      runs: Runs on each of the two neighbours, in multiples of 1000.
      epsilon: About what each solver is made to claim: few runs show nothing of a small one, and
        cannot reach a large one.
      delta: At which epsilons are compared.
      confidence: Of **all** rows together: each of a row's two bounds is above the truth with
        probability at most `(1 - confidence) / (2 * len(entries))`.
      key: Typed key.
      progress: Whether to show a progress bar.

    Returns:
      A row for each entry.

    Raises:
      TypeError: If the key is missing or not typed.
      ValueError: If a value is outside its bound.
    """
    check_key("key", key)
    check_int("runs", runs, minimum=_ROUND)
    check_positive("epsilon", epsilon)
    entries, level = list(entries), Level(delta, confidence)
    error = (1 - confidence) / (2 * max(1, len(entries)))
    level = dataclasses.replace(level, confidence=1 - error)
    each = enumerate(tqdm(entries, "audits", disable=not progress, unit="solver"))
    return [_audit(entry, runs, epsilon, level, jax.random.fold_in(key, i)) for i, entry in each]


def _audit(entry: Entry, runs: int, epsilon: float, level: Level, key: jax.Array) -> Audited:
    case: SolverCase = entry.make()
    solver = _claiming(case, epsilon, level.delta)
    watched, quick = Mechanism(watch, subject=(solver, case.problem)), tuple(QUICK.items())
    guarantee = solver.guarantee()
    relation = guarantee.relation.name.lower()
    rounds = itertools.count()

    def released(data: PyTree, times: int = 1) -> np.ndarray:
        keys = [jax.random.fold_in(key, next(rounds)) for _ in range(times)]
        return np.concatenate([watched.collect(data, k, _ROUND, quick) for k in keys])

    def told_apart(pair: tuple[PyTree, PyTree]) -> float:
        """By how many deviations a score learnt from half of the runs moves in the others."""
        half = _ROUND // 2
        first, second = (released(data) for data in pair)
        score = learn_score(first[:half], second[:half], Level(level.delta, 0.9))
        first, second = score(first[half:]), score(second[half:])
        return float(abs(first.mean() - second.mean()) / (first.std() + second.std() + 1e-30))

    pair = max(neighbours(case, relation), key=told_apart)
    first, second = (released(data, -(-runs // _ROUND)) for data in pair)
    scores = learnt_scores(first, second, level)
    shown = lower_bound_of_scores(*scores, **dataclasses.asdict(level))
    distance = distance_of_scores(*scores, level.confidence)
    claims = guarantee.epsilon(level.delta), guarantee.delta(0.0)
    return Audited(entry.name, relation, claims[0], shown, claims[1], distance)


def _claiming(case: SolverCase, epsilon: float, delta: float) -> PyTree:
    """The solver whose swept value, noise or step size, brings its claim near `epsilon`."""

    def claim(value: float) -> float:
        return float(case.build(value).guarantee().epsilon(delta))

    value = float(case.values[0])
    falls = claim(2 * value) < claim(value)
    low, high = 0.0, math.inf
    for _ in range(20):
        claimed = claim(value)
        if abs(claimed - epsilon) < 0.1 * epsilon:
            break
        low, high = (value, high) if (claimed > epsilon) == falls else (low, value)
        if low == 0 or math.isinf(high):  # by doubling, until both ends are known
            value = high / 2 if low == 0 else low * 2
        else:
            value = math.sqrt(low * high)
    return case.build(value)


def neighbours(case: SolverCase, relation: str) -> Iterator[tuple[PyTree, PyTree]]:
    """Pairs of neighbouring data sets whose one record is large, with every kind of label.

    Records of codes alone are never absent: one is removed, or changes all its codes, among those
    of the case, all of which take part.
    """
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(case.data)):
        both = [
            jax.tree.map(lambda a, b: a.at[0].set(b[0]), case.data, _with_first(case, 1.0, end))
            for end in (0, -1)
        ]
        if relation == "replace_one":
            yield both[0], both[1]
        else:
            yield from ((one, jax.tree.map(lambda a: a[1:], one)) for one in both)
        return
    for scale, end in itertools.product(_SCALES, (0, -1)):
        data = _with_first(case, scale, end)
        if relation != "replace_one":
            yield data, _with_first(case, math.nan, end)
            continue
        yield data, _with_first(case, -scale, end)
        yield data, _with_first(case, scale, -1 - end)


def _with_first(case: SolverCase, scale: float, end: int) -> PyTree:
    """A first record of alternating entries and a label at one end of its range, and NaN records.

    Those count as absent, as does the first at scale NaN: what others add, in batches that the
    adversary does not know, would hide it.
    """
    leaves, treedef = jax.tree.flatten(case.data)
    made = []
    for name, leaf in zip(field_names(case.data), leaves, strict=True):
        shape = leaf.shape[1:]
        value: ArrayLike = scale * (-1.0) ** np.arange(np.prod(shape)).reshape(shape)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            value = sorted((case.choices or {}).get(name, np.unique(leaf).tolist()))[end]
        elif not shape:
            value = abs(scale) * (end + 1)
        absent = jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
        made.append(jnp.full_like(leaf, absent).at[0].set(jnp.asarray(value, leaf.dtype)))
    return jax.tree.unflatten(treedef, made)
