"""Hyperparameters chosen by private selection, in one call."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from numpy.typing import NDArray

from dpjax.api._tuned import Tuned
from dpjax.core import PyTree, check_int, check_key
from dpjax.core._records import num_rows
from dpjax.privacy import (
    Budget,
    Guarantee,
    RunsLaw,
    SelectionGuarantee,
    calibrate_selection,
    check_budget,
    resolve_relation,
)
from dpjax.problems import RateConstrained, Risk
from dpjax.runtime import solve
from dpjax.solvers._swamped import candidates as quiet
from dpjax.transforms import add_rounded_gaussian, rounded_gaussian_shortfall

_BLOCK = 16
_ROUNDED_UP = 1 + 1e-6  # of noise, which runs in float32
_ONCE = RunsLaw(1.0, 1.0, max_runs=1)


def tune(
    candidates: Mapping[str, Sequence[Any]] | Sequence[Any],
    kind: type,
    problem: Any,
    data: PyTree,
    budget: Budget,
    *,
    key: jax.Array,
    num_records: int | None = None,
    trials: float = 16,
    shape: float | None = None,
    max_trials: int | None = None,
    validation: float = 0.2,
    correct: Callable[[PyTree, PyTree], jax.Array] | None = None,
    score: Callable[[PyTree], jax.Array] | None = None,
    constant_time: bool = True,
) -> Tuned:
    r"""Trains with random candidates a secret random number of times, and releases the best run.

    Each run draws a candidate uniformly, trains on the private records, and scores. The number of
    runs K follows a `RunsLaw`. A score is the number of right predictions on held-out records with
    rounded Gaussian noise, or `score(params)` on public data. Noise is calibrated so that the
    total meets the budget: with 16 trials on average about 1.7 times the noise of one run. The
    winner's score is biased upward, as the best of several noisy numbers.

    Guarantee: `SelectionGuarantee` of the solvers that ran, at most the budget. K, the other runs
    and the winner's place are not returned. A held-out part is disjoint from the training records:
    each record by a coin of its own, or a fixed share of the places under replace-one, so that a
    record pays for the worse of training and scoring. All `max_trials` runs are executed, for each
    static structure of candidates, so that time does not reveal K. With `epsilon = math.inf` every
    candidate runs once without noise, and the result is NOT PRIVATE.

    Args:
      candidates: Values by name of a field or option of `kind.for_budget`, whose grid is searched;
        or configured solvers, whose noise is replaced (*public*).
      kind: Class of the solvers; it has a `noise_multiplier`, such as `dpjax.solvers.DPSGD`.
      problem: What is solved.
      data: Tree of arrays with one leading axis `[n, ...]` (*secret*).
      budget: epsilon, delta and relation of the total.
      key: Typed key, scalar (*secret*). Never use one key for two calls.
      num_records: *Public* bound on n; default, under replace-one, n.
      trials: Expected number of runs E K, >= 1 (*public*).
      shape: Of the law of K, > -1; default 1 (*public*).
      max_trials: Largest number of runs; default 4 `trials` with `constant_time`, else 64
        `trials` (*public*). `max_trials / trials` is the price of constant time.
      validation: Share of records held out, in (0, 1); without `score` (*public*).
      correct: `correct(params, records) -> [n]` bool, each from its own record alone; default:
        right predictions of `RateConstrained`, and signs of a linear `Risk`.
      score: `score(params) -> []` on *public* data, larger is better, in place of `validation`.
      constant_time: Whether all `max_trials` runs are executed. False runs K of them, and the time
        of the call then reveals about how many: not covered by the guarantee.

    Returns:
      A `Tuned`: the winner only.

    Raises:
      TypeError: If the key is missing or not typed, the budget none, or `kind` has no
        `noise_multiplier`.
      ValueError: If a value is outside its bound, candidates differ in event or relation, a part
        would have less than one record, `num_records` is missing under add-or-remove-one, no run
        that counts has a finite score, or the budget cannot be met.
      UnsupportedEventError: If the solvers have no privacy loss distribution.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> problem = dpjax.problems.RateConstrained.linear(num_features=2, num_classes=2)
      >>> data = {"x": jnp.ones((400, 2)), "y": jnp.ones(400, int)}
      >>> tuned = tune(
      ...     {"learning_rate": [0.1, 1.0], "steps": [10]}, dpjax.solvers.DPSGD, problem, data,
      ...     dpjax.Budget(2.0, 1e-5), key=jax.random.key(0), num_records=400, trials=2)
      >>> tuned.guarantee.epsilon(1e-5) <= 2.0
      True

    Source: Liu and Talwar (2019); Papernot and Steinke (2022); see `SelectionGuarantee`.
    """
    check_key("key", key)
    check_budget(budget)
    if "noise_multiplier" not in {field.name for field in dataclasses.fields(kind)}:
        raise TypeError(f"kind must have a noise_multiplier, as DPSGD has, got {kind.__name__}")
    if not trials >= 1:
        raise ValueError(f"trials must be >= 1, got {trials!r}")
    if score is None and not 0 < validation < 1:
        raise ValueError(f"validation must lie in (0, 1), got {validation!r}")
    if hasattr(problem, "check"):
        problem.check(data)
    relation = budget.relation_or("add_or_remove_one").name.lower()
    public = _public_size(num_records, num_rows(data), relation)
    check_budget(budget, public)  # its delta
    if score is None and not 1 <= validation * public <= public - 1:
        raise ValueError(f"validation = {validation!r} of {public} records leaves a part empty")
    split_key, law_key, draw_key, run_key = jax.random.split(key, 4)
    correct = correct or _default_correct(problem) if score is None else None
    train, held = (data, None) if score else _split(data, validation, relation, split_key)
    # a coin's count of training records is secret: their bound is that of all
    bound = num_rows(train) if relation == "replace_one" else public
    private = budget.epsilon < math.inf
    finite = dataclasses.replace(budget, epsilon=budget.epsilon if private else 1.0)
    with quiet():
        solvers, choices = _solvers(candidates, kind, problem, bound, finite, 1.0)
        _check_alike(solvers, relation)
        runs, noise, z_score = _ONCE, 0.0, 0.0
        if private:
            shape = 1.0 if shape is None else shape
            runs = RunsLaw(
                trials, shape, max_trials or math.ceil((4 if constant_time else 64) * trials)
            )

            def base(z: float) -> Guarantee:
                return dataclasses.replace(solvers[0], noise_multiplier=z).guarantee()

            noise = calibrate_selection(base, runs, budget) * _ROUNDED_UP
            if score is None:
                z_score = calibrate_selection(lambda z: _score_guarantee(z, relation), runs, budget)
        solvers, choices = _solvers(candidates, kind, problem, bound, finite, noise)
    guarantee = Guarantee(dpe.NonPrivateDpEvent(), relation)
    if private:
        bases = (solvers[0].guarantee(),)
        scoring = () if score else (_score_guarantee(z_score, relation),)
        guarantee = SelectionGuarantee(bases + scoring, runs)
    counted = len(solvers)
    executed, drawn = counted, np.arange(counted)
    if private:
        counted = _draw_runs(runs, law_key)
        executed = int(runs.max_runs or 1) if constant_time else counted
        drawn = _draw_candidates(len(solvers), executed, draw_key)

    def run(solver: Any, key: jax.Array, train: PyTree, held: PyTree) -> tuple[PyTree, jax.Array]:
        train_key, noise_key = jax.random.split(key)
        params = solve(solver, problem, train, key=train_key, progress=False).params
        if score is not None:
            return params, jnp.asarray(score(params), float)
        assert correct is not None
        margin = jnp.sum(2 * correct(params, held).astype(jnp.int32) - 1)
        if z_score > 0:
            transform = add_rounded_gaussian(z_score)
            margin, _ = transform.update(margin, transform.init(margin), key=noise_key)
        return params, margin.astype(float)

    compiled = jax.jit(jax.vmap(run, in_axes=(0, 0, None, None)))
    winner, best, params = _best(solvers, drawn, counted, run_key, compiled, (train, held))
    if not math.isfinite(best):
        raise ValueError("no run that counts has a finite score")
    shown = best if score else 0.5 + best / (2 * validation * public)
    return Tuned(params, choices[winner], shown, guarantee, solvers[winner])


def _draw_runs(runs: RunsLaw, key: jax.Array) -> int:
    bits = np.asarray(jax.random.bits(key, (2,), jnp.uint32)).astype(np.uint64)
    return runs.draw(float((bits[0] << np.uint64(21)) | (bits[1] >> np.uint64(11))) / 2**53)


def _draw_candidates(candidates: int, number: int, key: jax.Array) -> NDArray[np.int32]:
    # types of fixed size here and below: the same draws with 64-bit types and without
    return np.asarray(jax.random.randint(key, (number,), 0, candidates, jnp.int32))


def _best(
    solvers: list[Any],
    drawn: NDArray[Any],
    counted: int,
    key: jax.Array,
    compiled: Callable[..., tuple[PyTree, jax.Array]],
    data: tuple[PyTree, PyTree],
) -> tuple[int, float, PyTree]:
    """The candidate, score and parameters of the best of the first `counted` runs.

    Each structure of solvers is run for every draw, in blocks; what a run shows is looked at only
    where it counts and is of its own structure.
    """
    size = min(_BLOCK, drawn.size)
    places = np.resize(drawn, size * math.ceil(drawn.size / size))
    tie_key, run_key = jax.random.split(key)
    ties = np.asarray(jax.random.uniform(tie_key, places.shape, jnp.float32))
    keys = jax.random.split(run_key, places.size)
    groups: dict[Any, list[int]] = {}
    for index, solver in enumerate(solvers):
        groups.setdefault(jax.tree.structure(solver), []).append(index)
    best = (-math.inf, -1.0)
    winner, params = int(drawn[0]), None
    for members in groups.values():
        stacked = jax.tree.map(
            lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]),
            *(solvers[member] for member in members),
        )
        position = np.zeros(len(solvers), int)
        position[members] = np.arange(len(members))
        for start in range(0, places.size, size):
            block = slice(start, start + size)
            chosen = jax.tree.map(lambda leaf, i=position[places[block]]: leaf[i], stacked)
            found, scores = compiled(chosen, keys[block], *data)
            valid = (np.arange(start, start + size) < counted) & np.isin(places[block], members)
            values = np.where(valid & np.isfinite(scores), scores, -np.inf)
            index = int(np.lexsort((ties[block], values))[-1])
            one = jax.tree.map(lambda leaf, i=index: leaf[i], found)
            if (values[index], ties[start + index]) > best and values[index] > -math.inf:
                best = float(values[index]), float(ties[start + index])
                winner, params = int(places[start + index]), one
    return winner, best[0], params


def _public_size(num_records: int | None, rows: int, relation: str) -> int:
    if num_records is None:
        if relation != "replace_one":
            raise ValueError(
                f"num_records is required under {relation}, where the number of records is secret: "
                "pass a public bound on it"
            )
        return rows
    check_int("num_records", num_records, minimum=1)
    return num_records


def _split(data: PyTree, validation: float, relation: str, key: jax.Array) -> tuple[PyTree, PyTree]:
    """Records to train on, and the others."""
    rows = num_rows(data)
    if relation == "replace_one":  # n is public, so a share of the places
        held = np.zeros(rows, bool)
        held[np.asarray(jax.random.permutation(key, rows))[: round(validation * rows)]] = True
    else:  # a coin of each record's own, that does not depend on n
        held = np.asarray(jax.random.uniform(key, (rows,), jnp.float32) < validation)
    arrays = jax.tree.map(np.asarray, data)
    return jax.tree.map(lambda a: a[~held], arrays), jax.tree.map(lambda a: a[held], arrays)


def _default_correct(problem: Any) -> Callable[[PyTree, PyTree], jax.Array]:
    if isinstance(problem, RateConstrained):
        return lambda w, held: jnp.argmax(problem.logits(w, held["x"]), axis=-1) == held["y"]
    if isinstance(problem, Risk) and problem.factored:
        return lambda w, held: (held["x"] @ w) * held["y"] > 0
    raise ValueError(
        f"correct is required for {type(problem).__name__}: correct(params, records) -> [n] bool, "
        "or score(params) on public data"
    )


def _solvers(
    candidates: Mapping[str, Sequence[Any]] | Sequence[Any],
    kind: Any,
    problem: Any,
    num_records: int,
    budget: Budget,
    noise: float,
) -> tuple[list[Any], list[Any]]:
    """The candidates with this noise, and what names each in the result."""
    if isinstance(candidates, Mapping):
        grid = itertools.product(*candidates.values())
        choices: list[Any] = [dict(zip(candidates, values, strict=True)) for values in grid]
        made = [
            kind.for_budget(problem, num_records, budget, noise_multiplier=noise, **choice)
            for choice in choices
        ]
    else:
        choices = list(range(len(candidates)))
        made = [dataclasses.replace(each, noise_multiplier=noise) for each in candidates]
    if not made:
        raise ValueError("candidates must hold at least one, got none")
    for solver in made:
        if not isinstance(solver, kind):
            raise TypeError(f"candidates must be of {kind.__name__}, got {type(solver).__name__}")
    return made, choices


def _check_alike(solvers: list[Any], relation: str) -> None:
    first = solvers[0].guarantee()
    if first.relation != resolve_relation(relation):
        raise ValueError(f"candidates must be under {relation}, got {first.relation}")
    for solver in solvers:
        if solver.guarantee() != first:
            raise ValueError(
                "candidates must have one event and relation at equal noise (sampler, steps, batch "
                f"size), got {first} and {solver.guarantee()}"
            )


def _score_guarantee(noise: float, relation: str) -> Guarantee:
    """Of right less wrong, of sensitivity 1 under add-or-remove-one and 2 under replace-one."""
    return Guarantee(dpe.GaussianDpEvent(noise), relation, rounded_gaussian_shortfall(noise))
