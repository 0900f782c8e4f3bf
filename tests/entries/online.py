"""Solvers whose noise is correlated over the steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree
from dpjax.problems import Risk, SimplexRisk
from dpjax.sampling import (
    CyclicPoisson,
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    RepeatedPartition,
)
from dpjax.solvers import DPFTRL, OnlineToBatch
from dpjax.testing import SolverCase, Statistic, register
from dpjax.transforms import Banded, BinaryTree, BufferedToeplitz, SplitNoise
from tests.entries.later import Later
from tests.entries.planned import RISK
from tests.entries.rows import DESCENT, SWEPT, SWEPT_POSITIVE, Choice, row

_N, _P = 24, 3
_PASS = DisjointPartition(5, 4)
_ADAM = optax.adam(0.1)


def _data() -> PyTree:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(_N, _P))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(x[:, 0] > 0, jnp.float32)}


def _logistic(w: jax.Array, record: PyTree) -> jax.Array:
    return jax.nn.softplus((1 - 2 * record["y"]) * (record["x"] @ w))


def _squares(margin: jax.Array, y: jax.Array) -> jax.Array:
    return (margin - y) ** 2 / 2


def _ball() -> Risk:
    return Risk(_logistic, jnp.ones(_P, jnp.float32), radius=2.0)


def _simplex() -> SimplexRisk:
    return SimplexRisk.linear(_squares, dim=_P, grad_range=2.0)


def increment(solver: OnlineToBatch, problem: Any) -> Statistic:
    """What the third step adds to the estimate without noise, in units of one record."""

    @jax.jit
    def later(key: jax.Array) -> tuple[Any, jax.Array]:
        state = solver.init(problem, key=key)
        everybody = jnp.ones(_N, bool)
        for _ in range(2):
            state, _ = solver.step(problem, _data(), everybody, state)
        return state, solver.step(problem, _data(), everybody, state)[1].sensitivity

    state, sensitivity = later(jax.random.key(0))
    bound = float(sensitivity) * solver.batch_size
    if solver.norm == "linf":  # it is told in l2
        bound /= _P**0.5

    def of(batch: PyTree, mask: jax.Array) -> PyTree:
        after, _ = solver.step(problem, batch, mask, state)
        change = jax.tree.map(jnp.subtract, after.estimate, state.estimate)
        return jax.tree.map(lambda leaf: solver.batch_size * leaf, change)

    return Statistic("an increment of the estimate", of, solver.norm, bound)


def _online(
    make: Callable[[], Any], sampler: Any, noise: Any, attack: bool = False, **options: Any
) -> SolverCase:
    problem = make()

    def build(value: Any) -> OnlineToBatch:
        return OnlineToBatch(sampler, noise, value, 0.7, 0.5, 0.3, 4.0, **options)

    attacked = Later(lambda: [increment(build(0.0), problem)]) if attack else ()
    return SolverCase(build, problem, _data(), statistics=attacked)


def _ftrl(strategy: Any, sampler: Any = None, **options: Any) -> SolverCase:
    def build(value: Any) -> DPFTRL:
        fields = {"relation": "replace_one", "noise": strategy} | options
        return DPFTRL(sampler or _PASS, value, 0.7, 0.5, 4.0, **fields)

    return SolverCase(build, _ball(), _data())


register(
    "OnlineToBatch(full batch)",
    "solver",
    lambda: _online(_ball, FullBatch(4), SplitNoise(4), relation="add_or_remove_one"),
    arguments=row(
        OnlineToBatch,
        {"sampler": FullBatch(4), "noise": SplitNoise(4)},
        smoothness=SWEPT,
        learning_rate=SWEPT_POSITIVE,
        relation=("add_or_remove_one", Choice()),
        **{name: DESCENT[name] for name in ("noise_multiplier", "clip_norm", "batch_size")},
    ),
    planned=RISK,
)
register(
    "OnlineToBatch(buffered)",
    "solver",
    lambda: _online(_ball, _PASS, BufferedToeplitz(5), attack=True, learner="optimistic"),
    slow=True,
    relative_of="OnlineToBatch(full batch)",
)
register(
    "OnlineToBatch(tree, whole, microbatches)",
    "solver",
    lambda: _online(
        _ball,
        _PASS,
        BinaryTree(5, exponent=1.0),
        attack=True,
        clip="whole",
        learner="parameter_free",
        microbatch_size=3,
    ),
    slow=True,
)
register(
    "OnlineToBatch(SimplexRisk, exponentiated)",
    "solver",
    lambda: _online(
        _simplex,
        FullBatch(4),
        SplitNoise(4),
        attack=True,
        norm="linf",
        clip="plain",
        learner="exponentiated",
    ),
    slow=True,
)
register(
    "OnlineToBatch(add or remove)",
    "solver",
    lambda: _online(
        _ball,
        IndependentPartition(5, _N),
        BufferedToeplitz(5),
        learner="adagrad_norm",
        relation="add_or_remove_one",
    ),
    slow=True,
    relative_of="OnlineToBatch(full batch)",
)
register(
    "DPFTRL(tree)",
    "solver",
    lambda: _ftrl(BinaryTree(5)),
    arguments=row(
        DPFTRL,
        {"sampler": DisjointPartition(5, 4)},
        relation=("replace_one", Choice()),
        **DESCENT,
    ),
    planned=RISK,
)
register(
    "DPFTRL(buffered, epochs)",
    "solver",
    lambda: _ftrl(
        BufferedToeplitz(6, (0.3, 0.2), (0.5, 0.9), 2), RepeatedPartition(2, 3, 4), average="last"
    ),
    slow=True,
)
register(
    "DPFTRL(banded, CyclicPoisson)",
    "solver",
    lambda: _ftrl(
        Banded(5, coefficients=(1.0, 0.6)),
        CyclicPoisson(0.5, 2, 5, _N),
        relation="add_or_remove_one",
    ),
    slow=True,
)
register(
    "DPFTRL(buffered, adam)",
    "solver",
    lambda: _ftrl(BufferedToeplitz(5), optimizer=_ADAM, average="last"),
    slow=True,
)
