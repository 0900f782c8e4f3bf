"""What the scaling study runs: each solver at given sizes, on data made up.

Noise, steps and clips are fixed and no budget is met, since times do not depend on them.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax import problems, queries, sampling, solvers, transforms
from dpjax.geometry import L1Ball

Sizes = dict[str, int]
PASSES = 8  # over the universe, for all pairs of attributes: see `_scaling_model.SYMBOLS`


class Instance(NamedTuple):
    """A solver, its problem and data, and the sizes that the cost model asks for."""

    solver: Any
    problem: Any
    data: Any
    sizes: Sizes


def squares(margin: jax.Array, y: jax.Array) -> jax.Array:
    """A link loss; one object, so that programs are compiled once."""
    return 0.5 * (margin - y) ** 2


def _records(s: Sizes) -> dict[str, jax.Array]:
    x_key, y_key = jax.random.split(jax.random.key(1))
    x = jax.random.uniform(x_key, (s["n"], s["p"]), minval=-1.0)
    return {"x": x, "y": jax.random.uniform(y_key, (s["n"],))}


def _labelled(s: Sizes) -> dict[str, jax.Array]:
    data = _records(s)
    number = jnp.arange(s["n"], dtype=jnp.int32)
    return {"x": data["x"], "y": number % s["c"], "group": number % s.get("Q", 2)}


def _descent(s: Sizes) -> dict[str, Any]:
    return {
        "sampler": sampling.PoissonSampler(s["m"] / s["n"], s["T"], s["n"]),
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "learning_rate": 0.1,
        "batch_size": float(s["m"]),
    }


def dpsgd(**s: int) -> Instance:
    solver = solvers.DPSGD(**_descent(s))
    problem = problems.RateConstrained.linear(s["p"], s["c"])
    more = {"B": solver.sampler.capacity, "d": (s["p"] + 1) * s["c"]}
    return Instance(solver, problem, _labelled(s), s | more)


def sgda(**s: int) -> Instance:
    solver = solvers.RateConstrainedSGDA(
        solvers.DPSGD(**_descent(s)), dual_learning_rate=0.1, histogram_noise=1.0
    )
    parity = problems.demographic_parity(s["Q"], s["c"], slack=0.1)
    problem = problems.RateConstrained.linear(s["p"], s["c"], parity)
    more = {
        "B": solver.sampler.capacity,
        "d": (s["p"] + 1) * s["c"],
        "J": problem.num_constraints,
        "S": parity.membership.shape[0],
    }
    return Instance(solver, problem, _labelled(s), s | more)


def dpftrl(**s: int) -> Instance:
    batch = s["n"] // s["T"]
    strategy = transforms.BufferedToeplitz(s["T"])
    solver = solvers.DPFTRL(
        sampling.DisjointPartition(s["T"], batch),
        1.0,
        1.0,
        0.1,
        float(batch),
        noise=strategy,
        relation="replace_one",
    )
    problem = problems.RateConstrained.linear(s["p"], s["c"])
    more = {"B": batch, "d": (s["p"] + 1) * s["c"], "b": len(strategy.decay)}
    return Instance(solver, problem, _labelled(s), s | more)


def online_to_batch(**s: int) -> Instance:
    solver = solvers.OnlineToBatch(
        sampling.FullBatch(s["T"]), transforms.SplitNoise(s["T"]), 1.0, 1.0, 0.5, 0.3, float(s["n"])
    )
    problem = problems.Risk.linear(squares, s["p"], radius=1.0)
    return Instance(solver, problem, _records(s), s | {"B": s["n"], "d": s["p"]})


def online_to_nonconvex(**s: int) -> Instance:
    sampler = sampling.PoissonSampler(s["m"] / s["n"], s["T"], s["n"])
    solver = solvers.OnlineToNonconvex(
        sampler, 1.0, 1.0, 0.5, 0.1, float(s["m"]), 0.05, num_directions=s["q"]
    )
    problem = problems.Risk.linear(squares, s["p"])
    return Instance(solver, problem, _records(s), s | {"B": sampler.capacity, "d": s["p"]})


def _ball(s: Sizes) -> Any:
    return problems.SimplexRisk.linear(squares, L1Ball(s["p"]), grad_range=2.0, third_order=0.0)


def saddle_mirror_descent(**s: int) -> Instance:
    sampler = sampling.TaperedPartition(s["T"], s["n"])
    solver = solvers.SaddleMirrorDescent(sampler, 0.1, 2.0, s["q"])
    return Instance(solver, _ball(s), _records(s), s | {"B": int(sampler.sizes.max())})


def anytime(**s: int) -> Instance:
    sampler = sampling.TaperedPartition(s["T"], s["n"], tail=s["q"])
    solver = solvers.AnytimeMirrorDescent(sampler, 0.1, 2.0, s["q"])
    return Instance(solver, _ball(s), _records(s), s | {"B": int(sampler.sizes.max())})


def multilevel(**s: int) -> Instance:
    levels = (s["M"],) * 2
    steps = 2 * (3 if s["M"] == 0 else 4 * 2 ** s["M"] + 1)
    s = s | {"n": s["m"] * steps}
    sampler = sampling.TaperedPartition(steps, s["n"])
    solver = solvers.MultilevelSaddle(sampler, 0.1, 2.0, levels, s["M"])
    more = {"B": int(sampler.sizes.max()), "T": steps, "q": 2 ** (s["M"] + 1) + 1}
    return Instance(solver, _ball(s), _records(s), s | more)


def frank_wolfe(**s: int) -> Instance:
    shape = sampling.FullBatch(s["T"]), 50.0, 2.0, float(s["n"])
    solver = solvers.FrankWolfe(*shape, relation="replace_one")
    return Instance(solver, _ball(s), _records(s), s)


def _cube(s: Sizes) -> tuple[Any, Any]:
    """All pairs of `a` attributes of 2^w codes: k = 2^(w a) cells."""
    domain = queries.Domain({f"x{i}": 2 ** s["w"] for i in range(s["a"])})
    workload = queries.Marginals.all_kway(domain, min(2, s["a"]))
    codes = jax.random.randint(jax.random.key(1), (s["n"], s["a"]), 0, 2 ** s["w"])
    return workload, codes.astype(jnp.int32)


def _dense(s: Sizes) -> tuple[Any, Any]:
    matrix = np.random.default_rng(1).random((s["j"], s["k"]), dtype=np.float32)
    cells = jax.random.randint(jax.random.key(1), (s["n"],), 0, s["k"])
    return _Bounded(matrix), cells.astype(jnp.int32)


@dpjax.core.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class _Bounded(queries.Dense):
    """Entries in [0, 1], whose exact sensitivities take long."""

    def sensitivity(self, relation: Any) -> queries.QuerySensitivity:
        """Bounds that are large enough for any such queries."""
        del relation
        return queries.QuerySensitivity(*[2.0 * math.sqrt(self.num_queries)] * 5)


def release(make: Callable[..., Any], fixed: int | None = None) -> Callable[..., Instance]:
    """A method of query release: on a table, or, with `j` queries over `k` cells, without one."""

    def build(**s: int) -> Instance:
        workload, data = _dense(s) if "j" in s else _cube(s)
        problem = problems.QueryRelease(workload)
        more = {"k": workload.universe_size, "j": workload.num_queries}
        more |= {"u": 2 * s["j"], "a": 1} if "j" in s else {"u": PASSES}
        more["T"] = s.get("T", fixed or 1)
        return Instance(make(problem, s | more), problem, data, s | more)

    return build


def _selection(kind: Any, **fields: float) -> Callable[[Any, Sizes], Any]:
    def make(problem: Any, s: Sizes) -> Any:
        bound = 2 * problem.sensitivity("replace_one").score_range
        return kind(
            sampling.FullBatch(s["T"]), num_records=float(s["n"]), score_range=bound, **fields
        )

    return make


def _mwem(problem: Any, s: Sizes) -> Any:
    bound = 2 * problem.sensitivity("replace_one").score_range
    return solvers.MWEM(
        sampling.FullBatch(s["T"]), 0.1, 0.1, float(s["n"]), bound, bound, replays=s["r"]
    )


def _gaussian_fit(problem: Any, s: Sizes) -> Any:
    return solvers.GaussianFit(
        sampling.FullBatch(1), problem.workload, 0.01, float(s["n"]), fit_steps=s["E"]
    )


def _histogram(problem: Any, s: Sizes) -> Any:
    return solvers.HistogramRelease(sampling.FullBatch(1), 0.01, float(s["n"]))


frank_wolfe_release = release(_selection(solvers.FrankWolfeRelease, noise_scale=0.1, step_size=0.1))
mirror_descent_release = release(
    _selection(solvers.MirrorDescentRelease, noise_scale=0.1, alpha=0.1, offset=1.0)
)
saddle_release = release(_selection(solvers.SaddleRelease, dual_step_size=1.0, step_size=0.1))
mwem = release(_mwem)
gaussian_fit = release(_gaussian_fit)
histogram_release = release(_histogram)


def program(solver: Any, problem: Any, data: Any, key: jax.Array) -> Any:
    """A whole run: plan, loop and result."""
    return dpjax.solve(solver, problem, data, key=key, progress=False).params


def programs(solver: Any, problem: Any, data: Any, keys: jax.Array) -> Any:
    """As many runs as there are keys, at once."""
    return jax.vmap(program, in_axes=(None, None, None, 0))(solver, problem, data, keys)
