"""The public solvers of dpjax, as registry entries."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree, Sampler
from dpjax.problems import RateConstrained, Risk, demographic_parity, from_masks
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.solvers import DPSGD, RateConstrainedSGDA
from dpjax.testing._cases import SolverCase, Statistic
from dpjax.testing._registry import register

_N, _P, _K, _M = 24, 3, 2, 4.0
_POISSON = PoissonSampler(0.3, 4, _N)
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


def _descent(value: Any, sampler: Sampler = _POISSON, **options: Any) -> DPSGD:
    return DPSGD(sampler, value, 0.7, 0.5, _M, decay=0.9, **options)


def gradient_sum(build: Callable[[Any], Any], problem: Any) -> Statistic:
    """The clipped gradient sum of one step: what moves the parameters without noise."""
    solver = build(0.0)
    descent = getattr(solver, "primal", solver)
    state = jax.jit(lambda key: solver.init(problem, key=key))(jax.random.key(0))
    before = getattr(state, "primal", state).params
    scale = descent.batch_size / descent.learning_rate

    def of(batch: PyTree, mask: jax.Array) -> PyTree:
        after, _ = solver.step(problem, batch, mask, state)
        params = getattr(after, "primal", after).params
        return jax.tree.map(lambda a, b: scale * (a - b), before, params)

    return Statistic("the gradient sum", of, "l2", descent.clip_norm)


def histograms(solver: RateConstrainedSGDA) -> list[Statistic]:
    """The table of predictions of one step, read off the constraint values it reports.

    With one constraint for each cell, public sizes and no noise, these are the cells.
    """
    rows = np.eye(2 * _K).reshape(2 * _K, 2, _K)
    problem = RateConstrained.linear(_P, _K, from_masks(np.eye(2), rows, 0.0, field="group"))
    problem = jax.tree.map(lambda a: a, problem)
    state = solver.init(problem, key=jax.random.key(0))
    state = solver.prologue(problem, None, state)
    size = jnp.max(state.sizes)

    def of(batch: PyTree, mask: jax.Array) -> jax.Array:
        _, info = solver.step(problem, batch, mask, state)
        return size * info.constraint_values

    return [Statistic(f"the table ({norm})", of, norm, 1.0) for norm in ("l1", "l2")]


def _dpsgd(problem: Callable[[], Any], **options: Any) -> SolverCase:
    def build(value: Any) -> DPSGD:
        return _descent(value, **options)

    made, data = problem(), _data()
    if isinstance(made, Risk):
        data = {"x": data["x"]}
    concrete = getattr(options.get("sampler"), "method", "") == "host"
    attacked = [] if options.get("optimizer") else [gradient_sum(build, made)]
    choices = {"y": range(_K), "group": range(2)}
    return SolverCase(
        build, made, data, statistics=attacked, choices=choices, concrete_key=concrete
    )


def _sgda(attack: bool = False, constrained: bool = True, **options: Any) -> SolverCase:
    def build(value: Any) -> RateConstrainedSGDA:
        noise = {"histogram_noise": value, "dual_learning_rate": 0.1} | options
        return RateConstrainedSGDA(_descent(value), **noise)

    problem = _linear() if constrained else RateConstrained.linear(_P, _K)
    attacked = []
    if attack:
        exact = build(0.0)
        attacked = [gradient_sum(build, problem), *histograms(exact)]
    choices = {"y": range(_K), "group": range(2)}
    return SolverCase(build, problem, _data(), statistics=attacked, choices=choices)


_FIXED = {"denominator": "fixed", "part_counts": jnp.array([40.0, 40.0])}
register("DPSGD(linear)", "solver", lambda: _dpsgd(_linear))
register(
    "DPSGD(Risk, full batch, uniform average)",
    "solver",
    lambda: _dpsgd(_risk, sampler=FullBatch(3), average="uniform", microbatch_size=3),
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
    "DPSGD(host, truncate)",
    "solver",
    lambda: _dpsgd(
        _linear, sampler=PoissonSampler(0.3, 4, _N, 10, method="host", overflow="truncate")
    ),
)
register("RateConstrainedSGDA(gaussian, hard, batch)", "solver", _sgda)
register(
    "RateConstrainedSGDA(laplace, soft, l1)",
    "solver",
    lambda: _sgda(histogram="laplace", rates="soft", multiplier_set="l1"),
)
register(
    "RateConstrainedSGDA(public counts, soft)",
    "solver",
    lambda: _sgda(attack=True, rates="soft", **_FIXED),
)
register(
    "RateConstrainedSGDA(public counts, hard, orthant)",
    "solver",
    lambda: _sgda(attack=True, multiplier_set="orthant", **_FIXED),
)
register("RateConstrainedSGDA(fixed)", "solver", lambda: _sgda(denominator="fixed"))
register("RateConstrainedSGDA(ema)", "solver", lambda: _sgda(denominator="ema"))
register("RateConstrainedSGDA(J = 0)", "solver", lambda: _sgda(constrained=False, histogram="none"))
