"""Hyperparameters chosen by private selection, in one call."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike
from numpy.typing import NDArray

from dpjax.api import _tune_candidates as pool
from dpjax.api._public_size import public_size
from dpjax.api._tune_candidates import Candidates, Kind, Sampled
from dpjax.api._tune_scores import Correct, Scores, default_correct, levels_of
from dpjax.core import PyTree, Solver, register_dataclass
from dpjax.core._checks import check_delta, check_int, check_key, check_nonnegative
from dpjax.core._records import Records, filled, num_rows, whole_rows
from dpjax.privacy import RunsLaw, SelectionGuarantee, calibrate_noise, calibrate_selection
from dpjax.privacy._budget import Budget, check_budget, relation_name, resolve_relation
from dpjax.privacy._guarantee import Guarantee, compose_guarantees
from dpjax.runtime import solve
from dpjax.runtime._loop import Job, scan, start
from dpjax.solvers import DPSGD, RateConstrainedSGDA
from dpjax.solvers._request import candidates as quiet

_BLOCK = 16
_CACHED = 2**18  # numbers in the batches of a block; with more, vmap is slower than a loop on CPU
_ROUNDED_UP = 1 + 1e-6  # of noise, which runs in float32
_SCORE_SHARE = 0.1  # of a run's precision, where training and scores read the same records


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Tuned:
    """The released winner of `dpjax.tune`; all of it is covered by the guarantee.

    Attributes:
      params: Its parameters, a tree.
      choice: Its hyperparameters by name, or its index in a list of solvers.
      score: Its score: noisy accuracy, less a penalty where there are constraints, or that on
        public data. Biased upward, as the best of many.
      guarantee: `guarantee.epsilon(delta)`, of the training, the scores and the choice together.
      solver: Its solver; `solver.guarantee()` is that of a single run, **not** of this release.
      steps: Steps after which its parameters were taken, all of them without `checkpoints`.
    """

    params: PyTree
    choice: Any = dataclasses.field(metadata={"static": True})
    score: float = dataclasses.field(metadata={"static": True})
    guarantee: Guarantee = dataclasses.field(metadata={"static": True})
    solver: Any = dataclasses.field(metadata={"static": True})
    steps: int = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        """Choice, score and guarantee."""
        private = "" if self.guarantee.delta(1.0) < 1 else ", NOT PRIVATE"
        return f"Tuned(choice={self.choice}, score={self.score:.4g}{private})\n  {self.guarantee!r}"


def tune(
    candidates: Mapping[str, Sequence[Any]] | Sequence[Any] | Sampled,
    kind: Kind,
    problem: PyTree,
    data: PyTree,
    budget: Budget,
    *,
    key: jax.Array,
    num_records: int | None = None,
    trials: float = 16,
    shape: float | None = None,
    max_trials: int | None = None,
    validation: float = 0.2,
    correct: Correct | None = None,
    violation_weight: float = 1.0,
    score: Callable[[PyTree], jax.Array] | None = None,
    checkpoints: int = 1,
    constant_time: bool = True,
) -> Tuned:
    r"""Trains with random candidates a secret random number of times, and releases the best run.

    Each run draws a candidate uniformly, trains on the private records, and scores. The number of
    runs K follows a `RunsLaw`. Noise is calibrated so that the total meets the budget: with 16
    trials on average about 1.7 times the noise of one run. The winner's score is biased upward, as
    the best of several noisy numbers.

    | scores from | by | cost |
    | --- | --- | --- |
    | public data | `score(params)` | none |
    | a held-out share `validation` | noisy counts | the worse of training and scoring |
    | the training records, `validation=0` | noisy counts | a tenth of a run's precision |

    A score is the noisy accuracy, or mean grade; of `RateConstrained` problems with constraints,
    less `violation_weight` times the largest excess of a noisy rate over its slack. With
    `checkpoints` of more than 1 a run scores that many of its iterates, evenly spaced, and takes
    the best: early stopping, inside one run with `trials=1`, and in each of several otherwise.

    Guarantee: `SelectionGuarantee` of the solvers that ran, at most the budget. K, the other runs
    and the winner's place are not returned. Candidates of other events (steps, batch sizes) are
    calibrated to one epsilon each, and the largest of their curves stands for a run. Iterates are
    post-processing of what a run's event covers, and the counts of all of them are one release. A
    held-out part is disjoint from the training records: each record by a coin of its own, or a
    fixed share of the places under replace-one. All `max_trials` runs are executed, for each static
    structure of candidates, so that time does not reveal K. With `epsilon = math.inf` every
    candidate runs once without noise, and the result is NOT PRIVATE.

    Args:
      candidates: Values by name of a field or option of `kind.for_budget`, whose grid is searched;
        a function of a key that gives such overrides, called 4 `trials` times for a list; or
        configured solvers, whose noise is replaced (*public*, and so must be what it reads).
      kind: `dpjax.solvers.DPSGD` or `RateConstrainedSGDA`; without `checkpoints` another class with
        a `noise_multiplier` that is all of its noise, or, with options for candidates, a class or
        function that makes solvers for a budget, such as `ObjectivePerturbation` or
        `linear_model_solver`.
      problem: What is solved.
      data: Tree of arrays with one leading axis `[n, ...]` (*secret*).
      budget: epsilon, delta and relation of the total.
      key: Typed key, scalar (*secret*). Never use one key for two calls.
      num_records: *Public* bound on n; default, under replace-one, n.
      trials: Expected number of runs E K, >= 1 (*public*).
      shape: Of the law of K, > -1; default 1 (*public*).
      max_trials: Largest number of runs; default 4 `trials` with `constant_time`, else 64
        `trials`, and 1 of 1 (*public*). `max_trials / trials` is the price of constant time.
      validation: Share of records held out, in [0, 1); without `score` (*public*).
      correct: `correct(params, records) -> [n]`, bool or grades in [0, 1], each from its own record
        alone; default: right predictions of `RateConstrained`, signs of a linear `Risk`; of a
        `LinearModel` right classes, or 1 less the root of the residual over the bound on labels.
      violation_weight: >= 0, what an excess of 1 costs in accuracy (*public*).
      score: `score(params) -> []` on *public* data, larger is better, in place of `validation`.
      checkpoints: Iterates of a run that are scored, >= 1; divides the steps (*public*).
      constant_time: Whether all `max_trials` runs are executed. False runs K of them, and the time
        of the call then reveals about how many: not covered by the guarantee.

    Returns:
      A `Tuned`: the winner only.

    Raises:
      TypeError: If the key is missing or not typed, the budget none, or `kind` has no noise that
        can be calibrated, no iterates, or no event that scores compose with.
      ValueError: If a value is outside its bound, candidates are of another relation, a part
        would have less than one record, `num_records` is missing under add-or-remove-one or below
        the number of records, no run that counts has a finite score, or the budget cannot be met.
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
    *keys, list_key = jax.random.split(key, 5)
    private = budget.epsilon < math.inf
    _check_kind(kind, checkpoints, private=private)
    check_int("checkpoints", checkpoints, minimum=1)
    check_nonnegative("violation_weight", violation_weight)
    if not trials >= 1:
        raise ValueError(f"trials must be >= 1, got {trials!r}")
    if score is None:
        check_delta("validation", validation)
    if hasattr(problem, "check"):
        problem.check(data)
    relation = budget.relation_or("add_or_remove_one").name.lower()
    rows = num_rows(data)
    public = public_size(num_records, relation, rows)
    check_budget(budget, public)  # its delta
    share = validation if score is None else 0.0
    if share and not 1 <= share * public <= public - 1:
        raise ValueError(f"validation = {validation!r} of {public} records leaves a part empty")
    # a coin's count of training records is secret: their bound is that of all
    bound = rows - round(share * rows) if relation == "replace_one" else public
    most = math.ceil(trials)
    if private and trials > 1:
        most = max_trials or math.ceil((4 if constant_time else 64) * trials)
    runs = RunsLaw(trials, 1.0 if shape is None else shape, most) if private else None
    scores = None
    if score is None:
        correct = correct or default_correct(problem)
        scored = (share or 1.0) * public
        levels = levels_of(correct, problem, data, public)
        scores = Scores(problem, correct, scored, violation_weight, checkpoints, relation, levels)
    joint, apart = (None, scores) if share else (scores, None)
    finite = Budget(budget.epsilon if private else 1.0, budget.delta, relation)
    with quiet():
        choices = pool.candidates_of(
            candidates, kind, problem, bound, finite, math.ceil(4 * trials), list_key
        )
        for unit in choices.units:
            _check_unit(unit, relation, checkpoints, joint=joint is not None)
        noise, score_noise = [0.0] * len(choices.units), 0.0
        if runs:
            noise, score_noise = _calibrated(choices, joint, apart, runs, budget)
        solvers = choices.with_noise(noise)
    guarantee = Guarantee(dpe.NonPrivateDpEvent(), relation)
    if runs:
        # of what runs, from the fields of the solvers and scores that run
        training = _of_one_run([solver.guarantee() for solver in solvers], joint, score_noise)
        scoring = () if apart is None else (apart.guarantee(score_noise),)
        guarantee = SelectionGuarantee((training, *scoring), runs)
        if guarantee.delta(budget.epsilon) > budget.delta:  # solvers differ from call to call
            raise ValueError(f"candidates of {pool.name_of(kind)} cannot be calibrated to {budget}")
    names = choices.choices
    plan = _Plan(
        problem, names, solvers, guarantee, runs, checkpoints, scores, score_noise, score, public
    )
    return plan.release(data, share, constant_time, keys)


def _check_kind(kind: Kind, checkpoints: int, *, private: bool) -> None:
    """What every noise is calibrated of, and of whose iterates the event is known to hold."""
    known = isinstance(kind, type) and issubclass(kind, DPSGD | RateConstrainedSGDA)
    by_budget = hasattr(kind, "for_budget") or not isinstance(kind, type)
    if not pool.has_noise_multiplier(kind) and not (by_budget and callable(kind) and private):
        raise TypeError(
            "kind must have a noise_multiplier, as DPSGD has, or make solvers for a finite budget, "
            f"got {pool.name_of(kind)}"
        )
    if checkpoints != 1 and not known:
        raise TypeError(
            f"checkpoints needs DPSGD or RateConstrainedSGDA, whose iterates are covered by their "
            f"events, got {pool.name_of(kind)}"
        )


def _check_unit(solver: Any, relation: str, checkpoints: int, *, joint: bool) -> None:
    guarantee = solver.guarantee()
    if guarantee.relation != resolve_relation(relation):
        raise ValueError(f"candidates must be under {relation}, got {guarantee.relation}")
    if joint and not isinstance(guarantee, Guarantee):
        raise TypeError(
            f"scores on the training records need a solver with an event, got "
            f"{type(solver).__name__}: use validation > 0, or score on public data"
        )
    if solver.sampler.steps % checkpoints:
        raise ValueError(
            f"checkpoints must divide the steps, got {checkpoints} and {solver.sampler.steps}"
        )


def _calibrated(
    choices: Candidates, joint: Scores | None, apart: Scores | None, runs: RunsLaw, budget: Budget
) -> tuple[list[float], float]:
    """Noise of each candidate, and of the scores, with which the selection meets the budget."""
    kinds = choices.kinds()
    several = sorted(set(kinds))
    own, own_score = dict.fromkeys(several, 1.0), 1.0
    # in proportion to what each alone needs for the budget
    if not choices.by_budget and (len(several) > 1 or joint):
        own = {i: _alone(functools.partial(choices.guarantee, i), budget) for i in several}
    if joint:
        own = {first: z / math.sqrt(1 - _SCORE_SHARE) for first, z in own.items()}
        own_score = _alone(joint.guarantee, budget) / math.sqrt(_SCORE_SHARE)

    def base(z: float) -> Guarantee | tuple[Guarantee, ...]:
        z *= _ROUNDED_UP  # as it runs: curves on grids are not monotone in the last digits
        each = [choices.guarantee(first, own[first] * z) for first in several]
        return _of_one_run(each, joint, own_score * z)

    scale = calibrate_selection(base, runs, budget) * _ROUNDED_UP
    score_noise = own_score * scale if joint else 0.0
    if apart:
        score_noise = calibrate_selection(apart.guarantee, runs, budget)
    return [own[first] * scale for first in kinds], score_noise


def _of_one_run(
    training: Sequence[Guarantee], joint: Scores | None, score_noise: float
) -> Guarantee | tuple[Guarantee, ...]:
    """The guarantee of a run, or those that differ, with that of scores on the same records."""
    each = tuple(dict.fromkeys(training))
    if joint:
        each = tuple(compose_guarantees(one, joint.guarantee(score_noise)) for one in each)
    return each[0] if len(each) == 1 else each


def _alone(guarantee: Callable[[float], Guarantee], budget: Budget) -> float:
    one = guarantee(1.0)
    failure = float(one.failure_probability)
    return calibrate_noise(
        lambda z: guarantee(z).event, budget, relation=one.relation, failure_probability=failure
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Plan:
    """All that is public of a call: what runs, and what it costs."""

    problem: PyTree
    choices: list[Any]
    solvers: list[Any]
    guarantee: Guarantee
    runs: RunsLaw | None
    iterates: int
    scores: Scores | None
    score_noise: float
    public_score: Callable[[PyTree], jax.Array] | None
    num_records: int

    def release(
        self, data: PyTree, share: float, constant_time: bool, keys: Sequence[jax.Array]
    ) -> Tuned:
        """The winner among runs on these records."""
        split_key, law_key, draw_key, run_key = keys
        relation = relation_name(self.guarantee.relation)
        train, held = _split(data, share, relation, split_key) if share else (data, data)
        counted = len(self.solvers)
        executed, drawn = counted, np.arange(counted, dtype=np.int32)
        if self.runs:
            counted = _draw_runs(self.runs, law_key)
            executed = int(self.runs.max_runs or 1) if constant_time else counted
            drawn = _draw_candidates(len(self.solvers), executed, draw_key)
        train, held = jax.tree.map(jnp.asarray, (train, None if self.scores is None else held))
        number = num_rows(train)
        if relation != "replace_one":  # a secret number, as `solve` has it outside transformations
            train = filled(train, whole_rows(self.num_records + 1))
        data = Records(train, number), held
        block = _block(self.solvers, self.problem, self.num_records)
        winner, best, found = _best(
            self.solvers, drawn, counted, run_key, self._compiled, data, block
        )
        if not math.isfinite(best):
            raise ValueError("no run that counts has a finite score")
        params, place = found
        solver = self.solvers[winner]
        steps = (int(place) + 1) * solver.sampler.steps // self.iterates
        return Tuned(params, self.choices[winner], best, self.guarantee, solver, steps)

    @functools.cached_property
    def _compiled(self) -> Callable[..., tuple[PyTree, jax.Array]]:
        return jax.jit(jax.vmap(self._run, in_axes=(0, 0, None, None)))

    def _run(
        self, solver: Any, key: jax.Array, train: Records, held: PyTree
    ) -> tuple[PyTree, jax.Array]:
        """Parameters and place of the best iterate of one run, and its score."""
        train_key, noise_key = jax.random.split(key)
        params = _iterates(solver, self.problem, train, train_key, self.iterates)
        if self.scores is not None:
            place, found = self.scores(params, held, self.score_noise, noise_key)
        else:
            assert self.public_score is not None
            values = jax.vmap(self.public_score)(params).astype(float)
            place = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
            found = values[place]
        return (jax.tree.map(lambda leaf: leaf[place], params), place), found


def _iterates(
    solver: Solver, problem: PyTree, data: Records, key: jax.Array, number: int
) -> PyTree:
    """What a run would return after each of `number` equal parts of its steps, `[number, *p]`."""
    if number == 1:
        params = solve(solver, problem, data, key=key, progress=False).params
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], params)
    init_key, plan_key = jax.random.split(key)
    xs = solver.sampler.plan(plan_key, data.num_records)
    parts = jax.tree.map(lambda a: a.reshape(number, -1, *a.shape[1:]), xs)

    def part(state: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        state, _ = scan(job, state, xs)
        return state, solver.finalize(problem, state)

    job = Job(solver, problem, data, init_key, xs)
    return jax.lax.scan(part, start(job), parts)[1]


def _block(solvers: list[Any], problem: PyTree, num_records: int) -> int:
    """Number of runs in one `vmap`, from public sizes."""
    if jax.default_backend() != "cpu":
        return _BLOCK
    rows = max(solver.sampler.slots or num_records for solver in solvers)
    width = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.init))
    return max(1, min(_BLOCK, _CACHED // (rows * max(1, width))))


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
    block: int = _BLOCK,
) -> tuple[int, float, PyTree]:
    """The candidate, score and parameters of the best of the first `counted` runs.

    Each structure of solvers is run for every draw, in blocks; what a run shows is looked at only
    where it counts and is of its own structure.
    """
    size = min(block, drawn.size)
    places = np.resize(drawn, size * math.ceil(drawn.size / size))
    tie_key, run_key = jax.random.split(key)
    ties = np.asarray(jax.random.uniform(tie_key, places.shape, jnp.float32))
    groups: dict[Any, list[int]] = {}
    for index, solver in enumerate(solvers):
        leaves, structure = jax.tree.flatten(solver)
        groups.setdefault((structure, tuple(map(np.shape, leaves))), []).append(index)
    best = (-math.inf, -1.0)
    winner, params = int(drawn[0]), None
    for group, members in enumerate(groups.values()):
        keys = jax.random.split(jax.random.fold_in(run_key, group), places.size)
        stacked = jax.tree.map(
            lambda *leaves: jnp.stack([_leaf(leaf) for leaf in leaves]),
            *(solvers[member] for member in members),
        )
        position = np.zeros(len(solvers), int)
        position[members] = np.arange(len(members))
        for first in range(0, places.size, size):
            part = slice(first, first + size)
            chosen = jax.tree.map(lambda leaf, i=position[places[part]]: leaf[i], stacked)
            found, scores = compiled(chosen, keys[part], *data)
            valid = (np.arange(first, first + size) < counted) & np.isin(places[part], members)
            values = np.where(valid & np.isfinite(scores), scores, -np.inf)
            index = int(np.lexsort((ties[part], values))[-1])
            one = jax.tree.map(lambda leaf, i=index: leaf[i], found)
            if (values[index], ties[first + index]) > best and values[index] > -math.inf:
                best = float(values[index]), float(ties[first + index])
                winner, params = int(places[first + index]), one
    return winner, best[0], params


def _leaf(leaf: ArrayLike) -> jax.Array:
    array = jnp.asarray(leaf)  # tables of noise stay integers
    return array if jnp.issubdtype(array.dtype, jnp.unsignedinteger) else array.astype(float)


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
