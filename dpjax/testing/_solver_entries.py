"""The public solvers of dpjax, as registry entries."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree
from dpjax.problems import RateConstrained, Risk, demographic_parity, from_masks
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.solvers import DPSGD, RateConstrainedSGDA
from dpjax.testing._cases import SolverCase, Statistic
from dpjax.testing._registry import register

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


def table(solver: RateConstrainedSGDA) -> Statistic:
    """The table of predictions of one step, read off the constraint values it reports.

    With one constraint for each cell, public sizes and no noise, these are the cells.
    """
    rows = np.eye(2 * _K).reshape(2 * _K, 2, _K)
    problem = RateConstrained.linear(_P, _K, from_masks(np.eye(2), rows, 0.0, field="group"))
    state = solver.prologue(problem, _data(), solver.init(problem, key=jax.random.key(0)))
    size = jnp.max(state.sizes)

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
        statistics=[gradient_sum(build, made)] if attack else [],
        choices=_CHOICES,
        concrete_key=getattr(options.get("sampler"), "method", "") == "host",
    )


def _sgda(attack: bool = False, constrained: bool = True, **options: Any) -> SolverCase:
    def build(value: Any, **more: Any) -> RateConstrainedSGDA:
        fields = {"dual_learning_rate": 0.1, "histogram_noise": value} | options | more
        return RateConstrainedSGDA(DPSGD(**(_DESCENT | {"noise_multiplier": value})), **fields)

    def exposed(value: Any) -> RateConstrainedSGDA:
        # with public sizes neither statistic depends on the noise of the other
        return build(value, denominator="fixed", part_counts=jnp.array([40.0, 40.0]))

    problem = _linear() if constrained else RateConstrained.linear(_P, _K)
    attacked = [gradient_sum(exposed, problem), table(exposed(0.0))] if attack else []
    return SolverCase(build, problem, _data(), statistics=attacked, choices=_CHOICES)


register("DPSGD(linear)", "solver", lambda: _dpsgd(_linear, attack=True))
register(
    "DPSGD(Risk, full batch, uniform average)",
    "solver",
    lambda: _dpsgd(_risk, attack=True, sampler=FullBatch(3), average="uniform", microbatch_size=3),
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
        _linear,
        sampler=PoissonSampler(0.3, 4, _N, 10, method="host", overflow="truncate"),
        relation="replace_one",
    ),
)
register("RateConstrainedSGDA(gaussian, hard, batch)", "solver", lambda: _sgda(attack=True))
register(
    "RateConstrainedSGDA(laplace, soft, l1)",
    "solver",
    lambda: _sgda(attack=True, histogram="laplace", rates="soft", multiplier_set="l1"),
)
register(
    "RateConstrainedSGDA(fixed, orthant)",
    "solver",
    lambda: _sgda(denominator="fixed", multiplier_set="orthant"),
)
register("RateConstrainedSGDA(ema)", "solver", lambda: _sgda(denominator="ema"))
register("RateConstrainedSGDA(J = 0)", "solver", lambda: _sgda(constrained=False, histogram="none"))
