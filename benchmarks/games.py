"""Matrix games: the solver by the rule, plain methods, and the optimum of the records.

Gaps of strategies in the game of the *mean* payoffs, of records of signs. The solver is what
`solver_for_game` takes by public numbers, at epsilon 1, delta 1e-6 and replace-one unless said.

Records are never written out. A solver of games reads them through sums of rows and columns alone,
so it runs on the *mean* of the records as its single record, its noise over n as before: with
`num_records` 1 and `noise_multiplier` over n, or `rho` times n^2, every draw and every noisy number
has the law that n records give it. Up to 1,000 strategies these means are binomial, in one array.
Above, the mean of an entry (i, j) is a function of a seed, i and j, so that rows and columns agree
where they cross: constant where payoffs are, binomial in the core, and outside of both the normal
approximation to the binomial law of 30,000 fair signs, from a counter hash, rounded to its grid.

Multiplicative weights release (A y, A' x) with noise in each of T rounds, jointly, with T step size
= X times sqrt(2 log d) / noise; X is the best of .3, 1 and 3 by the true gap, which is **not
private**. DP-SGDA is `DPSGD(average="uniform")`, on records, where these are at most 1e7 numbers.
Settings of the solvers were chosen on other games of these kinds, of other seeds.
"""

import dataclasses
import functools
import math
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

import dpjax
from benchmarks import _peers as peers
from benchmarks import _saddle_instances as instances
from benchmarks._text import table
from dpjax.problems import Saddle
from dpjax.solvers import NestedGame, solver_for_game

DELTA = 1e-6
DRAWS = 4
RULE, BEST = "by the rule", "no noise"
_MULTIPLES = (0.3, 1.0, 3.0)
_ARRAY = 1_000  # strategies up to which all means are held
_LARGEST_LP = 300
_DESCENT = 1e7  # numbers in the records up to which DP-SGDA runs


class Game(NamedTuple):
    """A kind of game: "dense", or a core of so many strategies among others that lose to it."""

    kind: str
    dim: int
    records: int
    epsilon: float = 1.0


GAMES = (
    Game("core 3", 50, 30_000),
    Game("core 3", 300, 30_000),
    Game("core 3", 1_000, 30_000),
    Game("core 3", 10_000, 30_000),
    Game("core 3", 100_000, 30_000),
    Game("core 3", 1_000_000, 30_000),
    Game("core 3", 50, 300_000),
    Game("core 12", 10_000, 30_000),
    Game("core 12", 100_000, 30_000),
    Game("core 30", 10_000, 30_000),
    Game("core 10", 300, 30_000),
    Game("core 30", 300, 30_000),
    Game("dense", 50, 30_000),
    Game("dense", 100, 30_000),
    Game("dense", 300, 30_000),
    Game("dense", 12, 500, 0.25),
    Game("dense", 12, 500),
    Game("core 3", 12, 500, 0.25),
    Game("dense", 50, 3_000),
    Game("core 10", 50, 3_000),
    Game("dense", 50, 500),
)
_FAST = (Game("core 3", 6, 500), Game("dense", 6, 500))


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All games; `fast` takes two tiny ones, and one draw."""
    del data
    points: list[dict[str, Any]] = []
    for number, game in enumerate(_FAST if fast else GAMES):
        points += _points(game, number, 1 if fast else DRAWS)
        jax.clear_caches()
    return {"delta": DELTA, "draws": 1 if fast else DRAWS, "points": points}


def defaults() -> dict[str, Any]:
    """The solver by the rule for a large game, a small one, and one of few records."""
    made = {}
    for dim, records in ((1_000, 30_000), (50, 30_000), (12, 500)):
        budget = dpjax.Budget(1.0, DELTA, "replace_one")
        game = Saddle.matrix_game((dim, dim))
        made[f"{dim} strategies, n = {records}"] = solver_for_game(game, records, budget)
    return made


def _points(game: Game, number: int, draws: int) -> list[dict[str, Any]]:
    budget = dpjax.Budget(game.epsilon, DELTA, "replace_one")
    gaps: dict[str, list[float]] = {}
    solver, play, cost = None, None, {}
    ran: list[dict[str, Any]] = []
    for draw in range(draws):
        made = _made(game, np.random.default_rng([2026, number, draw]))
        key = jax.random.key(1000 * number + draw)
        if play is None:
            solver = solver_for_game(made.problem, game.records, budget)
            play, cost = _compiled(solver, made, game.records, key)
        start = time.perf_counter()
        solution = jax.block_until_ready(play(made.record, key))
        seconds = time.perf_counter() - start
        ran.append({"seconds": seconds, "passed": _passed(solution)})
        gaps.setdefault(RULE, []).append(made.gap(solution.params))
        gaps.setdefault(BEST, []).append(made.gap(made.optimum()))
        uniform = (jnp.full(game.dim, 1 / game.dim),) * 2
        gaps.setdefault("uniform", []).append(made.gap(uniform))
        for name, params in _plain(made, game, budget, key, draw):
            gaps.setdefault(name, []).append(made.gap(params))
    weights = [name for name in gaps if name.startswith("weights")]
    if weights:
        tuned = min((gaps.pop(name) for name in weights), key=lambda values: float(np.mean(values)))
        gaps["multiplicative weights, tuned"] = tuned
    points = []
    for name, values in gaps.items():
        point = game._asdict() | {
            "method": name,
            "mean": float(np.mean(values)),
            "error": float(np.std(values, ddof=1) / math.sqrt(draws)) if draws > 1 else None,
        }
        if name == RULE:
            passed = [one["passed"] for one in ran if one["passed"] is not None]
            point |= {
                "solver": type(solver).__name__,
                "fallback": getattr(solver, "fallback", None),
                "passed": sum(passed) if passed else None,
                "seconds": float(np.median([one["seconds"] for one in ran])),
                **cost,
            }
        points.append(point)
        print(f"{' '.join(map(str, game))} {name}: {point['mean']:.5f}", flush=True)
    return points


def _passed(solution: Any) -> bool | None:
    return None if solution.info is None else bool(solution.info.passed[0])


def _compiled(solver: Any, made: "_Made", n: int, key: jax.Array) -> tuple[Any, dict[str, Any]]:
    """The run on a single record, the mean of n, and what it costs to compile and to hold."""
    if isinstance(solver, NestedGame):
        noise = float(np.asarray(solver.noise_multiplier)) / n
        alone = dataclasses.replace(solver, num_records=1.0, noise_multiplier=noise)
    else:
        rho = float(np.asarray(solver.rho)) * n**2
        alone = dataclasses.replace(solver, num_records=1.0, rho=rho)

    def play(record: Any, key: jax.Array) -> Any:
        solution = dpjax.solve(alone, made.problem, record, key=key, progress=False)
        return solution._replace(guarantee=None, state=None)

    start = time.perf_counter()
    compiled = jax.jit(play).lower(made.record, key).compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    held = None if memory is None else int(memory.temp_size_in_bytes)
    return compiled, {"compile_seconds": seconds, "temporary_bytes": held}


@dataclasses.dataclass(frozen=True)
class _Made:
    """A game, and the mean of its records as the one record."""

    problem: Saddle
    record: Any
    core: np.ndarray  # its true means; the whole game where it is dense
    core_mean: np.ndarray  # what the records say
    dim: int

    def gap(self, params: Any) -> float:
        x, y = (np.asarray(p, np.float64) for p in params)
        k = len(self.core)
        columns = x[:k] @ self.core + np.sum(x[k:])
        rows = self.core @ y[:k] - np.sum(y[k:])
        highest, lowest = np.max(columns), np.min(rows)
        if self.dim > k:
            highest, lowest = max(highest, -np.sum(x[:k])), min(lowest, np.sum(y[:k]))
        return float(highest - lowest)

    def optimum(self) -> tuple[np.ndarray, np.ndarray]:
        """An equilibrium of the mean of the records; the rest loses to the core in each record."""
        x, y = peers._game_by_lp(self.core_mean)
        rest = np.zeros(self.dim - len(self.core))
        return np.append(x, rest), np.append(y, rest)


def _made(game: Game, rng: np.random.Generator) -> _Made:
    if game.kind == "dense":
        core = rng.uniform(-1, 1, (game.dim, game.dim))
    elif game.kind == "core 3":
        core = instances.CORES["rps"]
    else:
        size = int(game.kind.split()[1])
        core = rng.uniform(-1, 1, (size, size))
    n, seed = game.records, int(rng.integers(2**31))
    mean = instances.mean_of_signs(core, n, seed)
    if game.dim <= _ARRAY:
        if game.kind != "dense":
            whole = instances.core_padded_matrix(game.dim, core)
            whole = instances.mean_of_signs(whole, n, seed)
            mean = whole[: len(core), : len(core)]
        else:
            whole = mean
        problem = Saddle.matrix_game((game.dim, game.dim))
        return _Made(problem, {"A": jnp.asarray(whole[None], jnp.float32)}, core, mean, game.dim)
    record = {"core": jnp.asarray(mean[None], jnp.float32), "seed": jnp.asarray([seed], jnp.uint32)}
    lines = [functools.partial(_line, game.dim, n, of_row=of_row) for of_row in (True, False)]
    problem = Saddle.game(_no_entry, (game.dim, game.dim), row=lines[0], column=lines[1])
    return _Made(problem, record, core, mean, game.dim)


def _no_entry(record: Any, i: jax.Array, j: jax.Array) -> jax.Array:
    raise NotImplementedError("rows and columns are computed as a whole")


def _line(dim: int, n: int, record: Any, at: jax.Array, *, of_row: bool) -> jax.Array:
    """A row or a column of the mean of n records of a core-padded game."""
    core, k = record["core"], record["core"].shape[0]
    others = jnp.arange(dim, dtype=jnp.uint32)
    at = jnp.asarray(at, jnp.uint32)
    i, j = (at, others) if of_row else (others, at)
    # 23 bits and a half, so that no number is 0 or 1
    bits = instances.counter_hash(record["seed"], i, j) >> jnp.uint32(9)
    normal = ndtri((bits.astype(jnp.float32) + 0.5) / 2.0**23)
    heads = jnp.clip(jnp.round(n / 2 + math.sqrt(n) / 2 * normal), 0, n)
    inside = core[jnp.minimum(i, k - 1), jnp.minimum(j, k - 1)]
    outside = jnp.where(i < k, -1.0, jnp.where(j < k, 1.0, 2 * heads / n - 1))
    return jnp.where((i < k) & (j < k), inside, outside)


def _plain(made: _Made, game: Game, budget: Any, key: jax.Array, draw: int) -> Any:
    """Names and strategies of the plain methods that are feasible."""
    if game.dim > _ARRAY:
        return
    mean = made.record["A"][0]
    if game.dim <= _LARGEST_LP:
        yield "one-shot Gaussian", peers.noisy_mean_of(mean, game.records, budget, key).params
    for multiple in _MULTIPLES:
        yield f"weights {multiple}", _weights(mean, game.records, budget, key, multiple)
    if game.records * game.dim**2 <= _DESCENT:
        whole = made.core
        if game.dim > len(whole):
            whole = instances.core_padded_matrix(game.dim, whole)
        data = {"A": jnp.asarray(instances.sign_matrices(whole, game.records, draw))}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield "DP-SGDA", peers.dpsgda(made.problem, data, budget, key).params


def _weights(mean: jax.Array, n: int, budget: Any, key: jax.Array, multiple: float) -> Any:
    """Optimistic multiplicative weights on noisy (A y, A' x), averaged."""
    noise = np.asarray(
        NestedGame.for_budget(Saddle.matrix_game((2, 2)), n, budget).noise_multiplier
    )
    stddev = float(noise) * math.sqrt(sum(mean.shape)) / n  # of a single release
    reach = multiple * math.sqrt(2 * math.log(max(mean.shape))) / stddev
    rounds = math.ceil(2 * max(reach, 1))
    return _weights_run(mean, key, stddev * math.sqrt(rounds), reach / rounds, rounds)


@functools.partial(jax.jit, static_argnums=4)
def _weights_run(
    mean: jax.Array, key: jax.Array, stddev: jax.Array, step_size: jax.Array, rounds: int
) -> Any:
    exact = jax.lax.Precision.HIGHEST

    def one(t: jax.Array, carry: Any) -> Any:
        (u, v), (old_x, old_y), (total_x, total_y) = carry
        x = jax.nn.softmax(-step_size * (u + old_x))
        y = jax.nn.softmax(step_size * (v + old_y))
        first, second = jax.random.split(jax.random.fold_in(key, t))
        losses = jnp.matmul(mean, y, precision=exact) + stddev * jax.random.normal(first, u.shape)
        gains = jnp.matmul(x, mean, precision=exact) + stddev * jax.random.normal(second, v.shape)
        return (u + losses, v + gains), (losses, gains), (total_x + x, total_y + y)

    zeros = jnp.zeros(mean.shape[0]), jnp.zeros(mean.shape[1])
    _, _, (x, y) = jax.lax.fori_loop(0, rounds, one, (zeros, zeros, zeros))
    return x / rounds, y / rounds


def slope(result: dict[str, Any], value: str = "mean") -> float:
    """Power of log d with which a figure of the solver grows in games of core 3."""
    mine = [
        p
        for p in result["points"]
        if p["method"] == RULE and (p["kind"], p["records"]) == ("core 3", 30_000)
    ]
    logs = np.log(np.log([p["dim"] for p in mine]))
    return float(np.polyfit(logs, np.log([p[value] for p in mine]), 1)[0])


def cells(result: dict[str, Any]) -> dict[Game, dict[str, dict[str, Any]]]:
    """Points by game and by method."""
    found: dict[Game, dict[str, dict[str, Any]]] = {}
    for p in result["points"]:
        game = Game(p["kind"], p["dim"], p["records"], p["epsilon"])
        found.setdefault(game, {})[p["method"]] = p
    return found


def readme(result: dict[str, Any]) -> str:
    """Markdown table, a row a game."""
    names = [BEST, RULE, "one-shot Gaussian", "multiplicative weights, tuned", "DP-SGDA", "uniform"]
    rows = []
    for game, methods in cells(result).items():
        ruled = methods[RULE]
        gaps = [f"{methods[name]['mean']:.2g}" if name in methods else "" for name in names]
        if ruled["error"] is not None:
            gaps[1] += f" ± {ruled['error']:.1g}"
        rows.append(
            [
                game.kind,
                f"{game.dim:,}",
                f"{game.records:,}",
                f"{game.epsilon:g}",
                *gaps,
                ruled["solver"],
                f"{ruled['seconds']:.2g}",
            ]
        )
    head = ["game", "d", "n", "epsilon", *names, "solver", "seconds"]
    return table(head, rows)


def summary(result: dict[str, Any]) -> str:
    """The table, and how the gap grows with log d."""
    text = readme(result)
    large = [p for p in result["points"] if p["method"] == RULE and p["dim"] > 300]
    for p in large:
        text += f"\n{p['kind']}, d = {p['dim']:,}: {p['temporary_bytes'] / 1e6:,.0f} MB"
    if large:
        text += f"\ncore 3: gap grows as (log d)^{slope(result):.2f}"
    return text
