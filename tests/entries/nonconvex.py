"""Nonsmooth nonconvex optimisation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree
from dpjax.papers.nonsmooth_nonconvex import PublishedOnlineToNonconvex
from dpjax.problems import Risk
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition, PoissonSampler
from dpjax.solvers import OnlineToNonconvex
from dpjax.testing import SolverCase, Statistic, TransformCase, register
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    clipped_displacement,
)
from tests.entries.later import Later
from tests.entries.planned import RISK
from tests.entries.rows import DESCENT, SWEPT, SWEPT_POSITIVE, Count, nonnegative, row

_N, _P = 24, 3
_CLIP = 0.7


def _data() -> PyTree:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(_N, _P))
    y = np.sign(x @ np.ones(_P))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def _hinge(w: jax.Array, record: PyTree) -> jax.Array:
    return jax.nn.relu(1 - record["y"] * jnp.tanh(record["x"] @ w))


def _capped(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.minimum(jnp.abs(margin - y), 1.0)


def _general() -> Risk:
    return Risk(_hinge, jnp.ones(_P, jnp.float32) / 4, radius=4.0)


def _linear() -> Risk:
    return Risk.linear(_capped, _P)


def _first_estimate(solver: OnlineToNonconvex, problem: Any) -> Statistic:
    """The first estimate of a second period, without noise, in units of one record."""

    def of(batch: PyTree, mask: jax.Array) -> PyTree:
        state = solver.init(problem, key=jax.random.key(0))
        everybody = jnp.ones(_N, bool)
        state, _ = solver.step(problem, _data(), everybody, state)
        state, _ = solver.step(problem, batch, mask, state)
        return solver.batch_size * state.sums.total

    return Statistic("an estimate of the gradient", jax.jit(of), "l2", _CLIP)


def _case(
    make: Callable[[], Risk],
    sampler: Any,
    attack: bool = False,
    kind: type[OnlineToNonconvex] = OnlineToNonconvex,
    **options: Any,
) -> SolverCase:
    problem = make()

    def build(value: Any) -> OnlineToNonconvex:
        return kind(sampler, value, _CLIP, 0.5, 0.1, 4.0, 0.05, **options)

    attacked = Later(lambda: [_first_estimate(build(0.0), problem)]) if attack else ()
    return SolverCase(build, problem, _data(), statistics=attacked)


register(
    "OnlineToNonconvex(first)",
    "solver",
    lambda: _case(_linear, PoissonSampler(0.3, 4, _N), attack=True, block_size=2),
    arguments=row(
        OnlineToNonconvex,
        {"sampler": PoissonSampler(0.3, 4, _N)},
        max_displacement=SWEPT,
        smoothing_radius=SWEPT,
        smoothness=SWEPT,
        num_directions=(2, Count()),
        **{name: DESCENT[name] for name in ("noise_multiplier", "clip_norm", "learning_rate")},
        batch_size=SWEPT_POSITIVE,
    ),
    planned=RISK,
)
register(
    "OnlineToNonconvex(zeroth)",
    "solver",
    lambda: _case(
        _general,
        PoissonSampler(0.3, 4, _N),
        attack=True,
        oracle="zeroth",
        num_directions=2,
        selection="uniform",
        microbatch_size=5,
    ),
    slow=True,
)
register(
    "OnlineToNonconvex(first, periods)",
    "solver",
    lambda: _case(
        _general,
        DisjointPartition(3, 8),
        noise=RestartNoise(BufferedToeplitz(2)),
        smoothness=3.0,
        difference_batch_size=2,
        relation="replace_one",
        directions="record",
        microbatch_size=3,
    ),
    slow=True,
)
register(
    "OnlineToNonconvex(zeroth, periods)",
    "solver",
    lambda: _case(
        _linear,
        FullBatch(2),
        oracle="zeroth",
        num_directions=4,
        noise=SplitNoise(3),
        smoothness=3.0,
        selection="min_norm",
    ),
    slow=True,
    relative_of="OnlineToNonconvex(zeroth)",
)
register(
    "OnlineToNonconvex(as published)",
    "solver",
    lambda: _case(
        _general,
        DisjointPartition(3, 7),
        noise=BinaryTree(4),
        smoothness=3.0,
        difference_batch_size=1,
        relation="replace_one",
        directions="record",
        reuse_directions=False,
        schedule="constant",
        kind=PublishedOnlineToNonconvex,
    ),
    slow=True,
)
register(
    "OnlineToNonconvex(add or remove)",
    "solver",
    lambda: _case(_general, IndependentPartition(4, _N)),
    slow=True,
    relative_of="OnlineToNonconvex(first)",
)


def _displacement() -> TransformCase:
    updates = {"w": jnp.full((2, 3), 0.1, jnp.float32), "b": jnp.ones(4, jnp.float32)}
    return TransformCase(lambda v: clipped_displacement(v, 0.3), updates, adds_noise=False)


register(
    "clipped_displacement",
    "transform",
    _displacement,
    arguments=row(
        clipped_displacement,
        learning_rate=(1.0, nonnegative()),
        max_displacement=(1.0, nonnegative()),
        reset_every=(2, Count(optional=True)),
    ),
)
