"""The public solvers of dpjax."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree
from dpjax.geometry import L1Ball
from dpjax.papers.estimators import multilevel
from dpjax.problems import (
    RateConstrained,
    Risk,
    Saddle,
    SimplexRisk,
    demographic_parity,
    from_masks,
    max_loss,
)
from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
)
from dpjax.solvers import (
    DPSGD,
    AnytimeMirrorDescent,
    FrankWolfe,
    GroupThresholds,
    MultilevelSaddle,
    PolishedFrankWolfe,
    PreconditionedSGD,
    RateConstrainedSGDA,
    SaddleMirrorDescent,
    TrainedModel,
)
from dpjax.solvers.vertices._polished_frank_wolfe import OnSupport, norm_counts
from dpjax.solvers.vertices._steps import coordinates
from dpjax.testing import SolverCase, Statistic, register
from tests.entries.later import Later
from tests.entries.planned import GAME, ON_SIMPLEX, PARITY, RATES, RISK
from tests.entries.rows import (
    DESCENT,
    PAIR,
    SWEPT,
    SWEPT_POSITIVE,
    Choice,
    Count,
    nonnegative,
    positive,
    row,
    share,
)

_N, _P, _K = 24, 3, 2
_ADAM = optax.adam(0.1)


def _data() -> PyTree:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(_N, _P))
    return {
        "x": jnp.asarray(x, jnp.float32),
        "y": jnp.asarray(x[:, 0] > 0, jnp.int32),
        "group": jnp.asarray(rng.integers(0, 2, _N), jnp.int32),
    }


def _linear() -> RateConstrained:
    return RateConstrained.linear(_P, _K, demographic_parity(2, _K, slack=0.05))


def _risk() -> Risk:
    def loss(w: jax.Array, record: PyTree) -> jax.Array:
        return jnp.log1p(jnp.exp(record["x"] @ w)) * record["x"][0]

    return Risk(loss, jnp.ones(_P, jnp.float32), radius=2.0)


_CHOICES = {"y": range(_K), "group": range(2)}
_DESCENT: dict[str, Any] = {
    "sampler": PoissonSampler(0.3, 4, _N),
    "clip_norm": 0.7,
    "learning_rate": 0.5,
    "batch_size": 4.0,
    "decay": 0.9,
}
_LOOKS: dict[str, Any] = {"looks": 2, "narrow_looks": 1, "optimizer": optax.sgd(1.0)}


def gradient_sum(build: Callable[[Any], Any], problem: Any) -> Statistic:
    """The clipped gradient sum of one step: what moves the parameters without noise.

    At parameters and multipliers other than those a run starts from, so that gradients differ.
    """
    solver = build(0.0)
    descent = getattr(solver, "primal", solver)
    start = jax.tree.map(
        lambda p: p + jnp.linspace(-0.5, 0.5, p.size).reshape(p.shape), problem.init
    )
    problem = dataclasses.replace(problem, init=start)
    state = jax.jit(lambda key: solver.init(problem, key=key))(jax.random.key(0))
    if hasattr(solver, "primal"):
        state = state._replace(multipliers=state.multipliers + jnp.arange(state.multipliers.size))
        state = solver.prologue(problem, _data(), state)
    scale = descent.batch_size / descent.learning_rate

    def of(batch: PyTree, mask: jax.Array) -> PyTree:
        after, _ = solver.step(problem, batch, mask, state)
        params = getattr(after, "primal", after).params
        return jax.tree.map(lambda a, b: scale * (a - b), start, params)

    return Statistic("the gradient sum", of, "l2", descent.clip_norm)


def _look_and_descent(build: Callable[[Any], Any], problem: Any) -> list[Statistic]:
    """All that looks release, and a step after the looks, by what they add to the state."""
    solver = build(0.0)
    state = jax.jit(lambda key: solver.init(problem, key=key))(jax.random.key(0))
    seen = jnp.broadcast_to(jnp.array([0.4, 1.5], jnp.float32), state.measured.shape)
    narrow, later = (
        state._replace(count=jnp.asarray(count, jnp.int32), measured=seen)
        for count in (solver.looks - 1, solver.looks)
    )
    _, info = solver.step(problem, _data(), jnp.zeros(_N, bool), later)
    scale = solver.batch_size / solver.learning_rate

    def added(before: Any) -> Callable[[PyTree, jax.Array], PyTree]:
        def of(batch: PyTree, mask: jax.Array) -> PyTree:
            after, _ = solver.step(problem, batch, mask, before)
            moved = jax.tree.map(lambda a, b: scale * (a - b), before.params, after.params)
            return moved, after.measured - before.measured

        return of

    return [
        Statistic("a look", added(state), "l2", 1.0),
        Statistic("a narrow look", added(narrow), "l2", 1.0),
        Statistic("a step after looks", added(later), "l2", float(info.clip_norm)),
    ]


def _all_three_parts(build: Callable[[Any], Any], problem: Any) -> list[Statistic]:
    """What each part of a preconditioned run releases, by what it adds to the state.

    The last part is read off with an inverse that is the identity.
    """
    solver = build(0.0)
    state = jax.jit(lambda key: solver.init(problem, key=key))(jax.random.key(0))
    state = state._replace(inverse=jnp.eye(_P + 1, dtype=state.inverse.dtype))
    seen = {"measured": jnp.array([0.4, 1.5], state.measured.dtype)}
    moments, last = (
        state._replace(count=jnp.asarray(count, jnp.int32), **seen)
        for count in (solver.looks, solver.looks + solver.moment_looks)
    )
    length, squared = solver._lengths(moments)
    scale = solver.batch_size / solver.learning_rate

    def added(before: Any, of: Callable[[Any], PyTree], factor: float = 1.0) -> Any:
        def run(batch: PyTree, mask: jax.Array) -> PyTree:
            after, _ = solver.step(problem, batch, mask, before)
            return jax.tree.map(lambda a, b: factor * (a - b), of(after), of(before))

        return run

    return [
        Statistic("a look", added(state, lambda s: s.measured), "l2", 1.0),
        Statistic("moments", added(moments, lambda s: s.moment), "l2", 1.5 * float(squared)),
        Statistic(
            "a step of descent",
            added(last, lambda s: s.params, scale),
            "l2",
            float(solver.clip_norm * length),
        ),
    ]


def _preconditioned() -> SolverCase:
    problem = RateConstrained.linear(_P, _K)

    def build(value: Any) -> PreconditionedSGD:
        fields = {**_DESCENT, "noise_multiplier": value, "moment_looks": 1}
        return PreconditionedSGD(**fields)

    parts = Later(lambda: _all_three_parts(build, problem))
    return SolverCase(build, problem, _data(), statistics=parts, choices=_CHOICES)


def table(solver: RateConstrainedSGDA) -> Statistic:
    """The table of predictions of one step, read off the constraint values it reports.

    With one constraint for each cell, public sizes and no noise, these are the cells.
    """
    rows = np.eye(2 * _K).reshape(2 * _K, 2, _K)
    problem = RateConstrained.linear(_P, _K, from_masks(np.eye(2), rows, 0.0, field="group"))
    state = solver.prologue(problem, _data(), solver.init(problem, key=jax.random.key(0)))
    size = jnp.max(state.memory.sizes)

    def of(batch: PyTree, mask: jax.Array) -> jax.Array:
        _, info = solver.step(problem, batch, mask, state)
        return size * info.constraint_values

    return Statistic("the table", of, "l1", 1.0)


def _dpsgd(problem: Callable[[], Any], attack: bool = False, **options: Any) -> SolverCase:
    def build(value: Any) -> DPSGD:
        return DPSGD(**(_DESCENT | {"noise_multiplier": value} | options))

    made, data = problem(), _data()
    if isinstance(made, Risk):
        data = {"x": data["x"]}
    return SolverCase(
        build,
        made,
        data,
        statistics=Later(lambda: [gradient_sum(build, made)]) if attack else (),
        choices=_CHOICES,
        concrete_key=getattr(options.get("sampler"), "method", "") == "host",
    )


def _sgda(attack: bool = False, constrained: bool = True, **options: Any) -> SolverCase:
    def build(value: Any, **more: Any) -> RateConstrainedSGDA:
        fields = {"dual_learning_rate": 0.1, "histogram_noise": value} | options | more
        return RateConstrainedSGDA(DPSGD(**(_DESCENT | {"noise_multiplier": value})), **fields)

    def exposed(value: Any) -> RateConstrainedSGDA:
        # with public sizes neither statistic depends on the noise of the other
        counts = jnp.array([40.0, 40.0])
        fixed = {"denominator": "fixed", "part_counts": counts, "adaptive_clip": False}
        return build(value, estimator="ratio", **fixed)

    problem = _linear() if constrained else RateConstrained.linear(_P, _K)
    both = Later(lambda: [gradient_sum(exposed, problem), table(exposed(0.0))])
    attacked = both if attack else ()
    return SolverCase(build, problem, _data(), statistics=attacked, choices=_CHOICES)


register(
    "DPSGD(linear)",
    "solver",
    lambda: _dpsgd(_linear, attack=True),
    arguments=row(
        DPSGD,
        {"sampler": PoissonSampler(0.3, 4, _N)},
        relation=("replace_one", Choice()),
        **DESCENT,
    ),
    planned=RISK,
)
register(
    "DPSGD(Risk, full batch, uniform average)",
    "solver",
    lambda: _dpsgd(_risk, attack=True, sampler=FullBatch(3), average="uniform", microbatch_size=3),
    slow=True,
    relative_of="DPSGD(linear)",
)
register(
    "DPSGD(partition, adam, last iterate)",
    "solver",
    lambda: _dpsgd(
        _linear,
        sampler=DisjointPartition(3, 8),
        relation="replace_one",
        optimizer=_ADAM,
        average="last",
    ),
)
register(
    "DPSGD(looks)",
    "solver",
    lambda: dataclasses.replace(
        # of an optimizer that is given the learning rate is not that of gradients of length 1
        _dpsgd(_linear, **_LOOKS),
        statistics=Later(
            lambda: _look_and_descent(
                lambda z: DPSGD(**(_DESCENT | _LOOKS | {"noise_multiplier": z})),
                _linear(),
            )
        ),
    ),
    relative_of="DPSGD(linear)",
)
register(
    "DPSGD(host, truncate)",
    "solver",
    lambda: _dpsgd(
        _linear,
        sampler=PoissonSampler(0.3, 4, _N, 10, method="host", overflow="truncate"),
        relation="replace_one",
    ),
    slow=True,
)
register(
    "DPSGD(shards)",
    "solver",
    lambda: _dpsgd(_linear, attack=True, sampler=PoissonSampler(0.3, 4, _N, shards=4)),
    slow=True,
)
register(
    "PreconditionedSGD",
    "solver",
    _preconditioned,
    arguments=row(
        PreconditionedSGD,
        {"sampler": PoissonSampler(0.3, 4, _N)},
        noise_multiplier=SWEPT,
        clip_norm=SWEPT,
        learning_rate=SWEPT,
        batch_size=SWEPT_POSITIVE,
        damping=SWEPT,
        decay=(0.9, share(leaf=True)),
        looks=(1, Count()),
        moment_looks=(1, Count()),
        relation=("replace_one", Choice()),
    ),
    planned=RATES,
    spread="no: a square matrix of the inputs' size",
    slow=True,  # three searches; test_preconditioned_sgd.py has records that reach each bound
)
register(
    "RateConstrainedSGDA(gaussian, hard)",
    "solver",
    lambda: _sgda(attack=True, adaptive_clip=True, noise_step=0.3),
    arguments=row(
        RateConstrainedSGDA,
        {"primal": DPSGD(PoissonSampler(0.3, 4, _N), 1.0, 1.0, 0.1, 4.0)},
        dual_learning_rate=SWEPT,
        histogram_noise=SWEPT,
        temperature=SWEPT_POSITIVE,
        multiplier_bound=SWEPT_POSITIVE,
        size_floor=SWEPT_POSITIVE,
        size_decay=(0.9, share(leaf=True)),
        noise_step=SWEPT_POSITIVE,
        part_counts=([1.0, 2.0], nonnegative(leaf=True)),
        count_noise=SWEPT,
        histogram=("none", Choice()),
        rates=("soft", Choice()),
        denominator=("ema", Choice()),
        multiplier_set=("l1", Choice()),
        estimator=("ratio", Choice()),
    ),
    planned=RATES,
)
register(
    "RateConstrainedSGDA(laplace, soft, l1)",
    "solver",
    lambda: _sgda(
        attack=True, histogram="laplace", rates="soft", multiplier_set="l1", denominator="batch"
    ),
    slow=True,
)
register(
    "RateConstrainedSGDA(fixed, orthant)",
    "solver",
    lambda: _sgda(denominator="fixed", multiplier_set="orthant"),
    slow=True,
)
register(
    "RateConstrainedSGDA(ema)",
    "solver",
    lambda: _sgda(denominator="ema"),
    slow=True,
    relative_of="RateConstrainedSGDA(gaussian, hard)",
)
register(
    "RateConstrainedSGDA(J = 0)",
    "solver",
    lambda: _sgda(constrained=False, histogram="none"),
    slow=True,
    relative_of="RateConstrainedSGDA(gaussian, hard)",
)


def _thresholds() -> SolverCase:
    rng = np.random.default_rng(5)
    start = {"w": rng.normal(size=(_P, _K)).astype(np.float32), "b": np.ones(_K, np.float32)}
    problem = TrainedModel(_linear(), jax.tree.map(jnp.asarray, start))

    def build(value: Any) -> GroupThresholds:
        return GroupThresholds(FullBatch(1), value, bins=32)

    def counts(batch: PyTree, mask: jax.Array) -> jax.Array:
        solver = build(0.0)
        state = solver.init(problem, key=jax.random.key(0))
        return solver.step(problem, batch, mask, state)[0].histogram

    exact = Later(lambda: [Statistic("the histogram", counts, "l1", 1.0)])
    return SolverCase(build, problem, _data(), statistics=exact, choices=_CHOICES)


register(
    "GroupThresholds",
    "solver",
    _thresholds,
    arguments=row(
        GroupThresholds,
        {"sampler": FullBatch(1)},
        histogram_noise=SWEPT,
        bins=(8, Count(minimum=2)),
        relation=("replace_one", Choice()),
    ),
    planned=PARITY,
    spread="no: a histogram",
)


def score_change(solver: Any, problem: Any) -> Statistic:
    """The clipped gradient sums of one step, read off the scores, in units of `grad_range`.

    As all differences of two vertices, so that the largest is the range.
    """
    state = jax.jit(lambda key: solver.init(problem, key=key))(jax.random.key(0))
    size, weight = float(solver.sampler.sizes[0]), 1.0
    if isinstance(solver, MultilevelSaddle):
        estimator, level = multilevel(solver.max_level, solver.antithetic), solver.levels[0]
        weight = estimator.records(level) / estimator.factor(level)

    def of(batch: PyTree, mask: jax.Array) -> PyTree:
        after, _ = solver.step(problem, batch, mask, state)
        scores = after.scores if isinstance(after.scores[0], tuple) else (after.scores,)
        parts = zip(scores, problem.domains, solver.step_size, solver.grad_range, strict=True)
        made = [
            domain.scores(total) * (size * weight / (step * bound))
            for (total, _), domain, step, bound in parts
        ]
        return [one[:, None] - one[None, :] for one in made]

    return Statistic("the change of the scores", of, "linf", 1.0)


def _payoff(x: jax.Array, y: jax.Array, record: PyTree) -> jax.Array:
    return x @ record["A"] @ y + jnp.sum((x - record["A"][:, 0]) ** 2)


def _bent(x: jax.Array, record: PyTree) -> jax.Array:
    return x @ record["A"] + 0.5 * jnp.sum((x - record["A"][:, 0]) ** 2)


def _margin(w: jax.Array, record: PyTree) -> jax.Array:
    return jnp.log1p(jnp.exp(record["x"] @ w)) + record["x"][0]


def _squares(margin: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * (margin - y) ** 2


_GAME = Saddle.matrix_game((2, 3), value_range=1.5)
_SADDLE = Saddle(_payoff, (2, 3), grad_range=(1.5, 1.0), third_order=1.0)
_LARGEST = max_loss(_bent, 3, grad_range=(1.3, 0.9), dim=2, smoothness=1.0, third_order=0.0)
_SIMPLEX = SimplexRisk(_margin, dim=_P, grad_range=0.7)
_BALL = SimplexRisk.linear(_squares, L1Ball(_P, 2.0), grad_range=1.3)


def _vertices(
    kind: Any, problem: Any, sampler: Any, *shape: Any, attack: bool = False, **options: Any
) -> SolverCase:
    def build(value: Any) -> Any:
        sizes = (value,) * len(problem.domains)
        return kind(sampler, sizes, problem.ranges, *shape, **options)

    rng = np.random.default_rng(4)
    data = _data()
    data = {"x": data["x"], "y": jnp.asarray(rng.normal(size=_N), jnp.float32)}
    if len(problem.domains) > 1:
        data = {"A": jnp.asarray(rng.normal(size=(_N, 2, 3)), jnp.float32)}
    elif problem is _SIMPLEX:
        data = {"x": data["x"]}
    return SolverCase(
        build,
        problem,
        data,
        values=(0.1, 0.3),
        statistics=Later(lambda: [score_change(build(1.0), problem)]) if attack else (),
    )


_INDEPENDENT = IndependentPartition(4, 2 * _N, tapered=True)
_ADD: dict[str, Any] = {"relation": "add_or_remove_one"}

register(
    "SaddleMirrorDescent(matrix game, played)",
    "solver",
    # so many draws that a NaN anywhere in a record is met
    lambda: _vertices(SaddleMirrorDescent, _GAME, TaperedPartition(5, 20), 16, attack=True),
    arguments=row(
        SaddleMirrorDescent,
        {"sampler": TaperedPartition(5, 20)},
        step_size=PAIR,
        grad_range=PAIR,
        num_draws=(2, Count()),
        output=("fresh", Choice()),
        relation=("replace_one", Choice()),
    ),
    planned=GAME,
)
register(
    "SaddleMirrorDescent(SimplexRisk, fresh)",
    "solver",
    lambda: _vertices(
        SaddleMirrorDescent, _SIMPLEX, DisjointPartition(4, 6), 2, "fresh", attack=True
    ),
    slow=True,
)
register(
    "SaddleMirrorDescent(largest loss, polar)",
    "solver",
    lambda: _vertices(
        SaddleMirrorDescent, _LARGEST, TaperedPartition(5, 20), 2, "fresh", True, attack=True
    ),
    slow=True,
    relative_of="SaddleMirrorDescent(matrix game, played)",
)
register(
    "SaddleMirrorDescent(add or remove)",
    "solver",
    lambda: _vertices(SaddleMirrorDescent, _SADDLE, _INDEPENDENT, 2, **_ADD),
    slow=True,
    relative_of="SaddleMirrorDescent(matrix game, played)",
)
register(
    "AnytimeMirrorDescent(q = 3)",
    "solver",
    lambda: _vertices(
        AnytimeMirrorDescent, _BALL, TaperedPartition(7, 20, tail=3), 2, 3, 5, attack=True
    ),
    arguments=row(
        AnytimeMirrorDescent,
        {"sampler": TaperedPartition(4, 20)},
        step_size=((0.1,), positive(leaf=True)),
        grad_range=((0.1,), positive(leaf=True)),
        num_draws=(2, Count()),
        refresh=(1, Count()),
        output_draws=(2, Count(optional=True)),
    ),
    planned=ON_SIMPLEX,
)
register(
    "AnytimeMirrorDescent(q = 1)",
    "solver",
    lambda: _vertices(AnytimeMirrorDescent, _SIMPLEX, _INDEPENDENT, 2, **_ADD),
    slow=True,
    relative_of="AnytimeMirrorDescent(q = 3)",
)
register(
    "MultilevelSaddle",
    "solver",
    lambda: _vertices(
        MultilevelSaddle, _SADDLE, TaperedPartition(18, 24), (0, 1, 0, 0), 1, attack=True
    ),
    arguments=row(
        MultilevelSaddle,
        {"sampler": TaperedPartition(18, _N), "levels": (0, 1, 0, 0)},
        step_size=PAIR,
        grad_range=PAIR,
        max_level=(1, Count(0)),
    ),
    planned=GAME,
)


def _frank_wolfe(problem: SimplexRisk, attack: bool = False, **options: Any) -> SolverCase:
    def build(value: Any) -> FrankWolfe:
        return FrankWolfe(FullBatch(4), value, problem.grad_range, 20.0, **options)

    solver, (domain,) = build(20.0 / problem.grad_range), problem.domains

    def change() -> Statistic:
        state = jax.jit(lambda key: solver.init(problem, key=key))(jax.random.key(0))

        def of(batch: PyTree, mask: jax.Array) -> PyTree:
            scores = coordinates(domain).logits(*solver.direction(problem, batch, mask, state))
            return scores[:, None] - scores[None, :]

        return Statistic("the change of the scores", of, "linf", 1.0)

    case = _vertices(FrankWolfe, problem, FullBatch(4))
    attacked = Later(lambda: [change()]) if attack else ()
    return dataclasses.replace(case, build=build, values=(5.0, 50.0), statistics=attacked)


register(
    "FrankWolfe(linear)",
    "solver",
    lambda: _frank_wolfe(_BALL),
    arguments=row(
        FrankWolfe,
        {"sampler": FullBatch(4)},
        sharpness=SWEPT_POSITIVE,
        grad_range=SWEPT_POSITIVE,
        num_records=SWEPT_POSITIVE,
        microbatch_size=(2, Count(optional=True)),
        relation=("replace_one", Choice()),
    ),
    planned=ON_SIMPLEX,
)
register(
    "FrankWolfe(autodiff, microbatches)",
    "solver",
    lambda: _frank_wolfe(_SIMPLEX, attack=True, microbatch_size=3, relation="replace_one"),
    slow=True,
)


def _polished(problem: SimplexRisk, attack: bool = False, **options: Any) -> SolverCase:
    draws = FrankWolfe(FullBatch(3), 10.0 / problem.grad_range, problem.grad_range, 20.0)

    def build(value: Any) -> PolishedFrankWolfe:
        descent = DPSGD(FullBatch(2), value, 2.0, 0.1, 20.0, decay=0.5)
        return PolishedFrankWolfe(draws, descent, 3.0, **options)

    def change() -> Statistic:
        point = jnp.asarray(problem.init)
        face = OnSupport(problem, jnp.arange(point.size) < 2, point)

        def of(batch: PyTree, mask: jax.Array) -> jax.Array:
            return norm_counts(face, point, 2.0 ** -jnp.arange(12.0), batch, mask, 3)

        return Statistic("the histogram", of, "l1", 1.0)

    case = _vertices(PolishedFrankWolfe, problem, draws.sampler)
    attacked = Later(lambda: [change()]) if attack else ()
    return dataclasses.replace(case, build=build, values=(3.0, 8.0), statistics=attacked)


register(
    "PolishedFrankWolfe(l1 ball)",
    "solver",
    lambda: _polished(_BALL, attack=True),
    arguments=row(
        PolishedFrankWolfe,
        {
            "draws": FrankWolfe(FullBatch(3), 1.0, 1.0, 20.0),
            "descent": DPSGD(FullBatch(2), 1.0, 2.0, 0.1, 20.0),
        },
        histogram_noise=SWEPT,
    ),
    planned=ON_SIMPLEX,
)
register(
    "PolishedFrankWolfe(simplex, dense)",
    "solver",
    lambda: _polished(_SIMPLEX, attack=True, dense=True),
    slow=True,
    relative_of="PolishedFrankWolfe(l1 ball)",
)
