"""Plain private methods to compare the solvers with, at the same budget.

All hold under replace-one, with the number of records public, and return what they release with its
guarantee. Noise multipliers are noise over *add-or-remove* sensitivity, as everywhere in dpjax; the
accountant doubles the sensitivity for replace-one. Each peer enforces its sensitivity by clipping,
can be wrapped in `jax.jit` and `jax.vmap` over keys, and sees public constants and records alone.
`best_over` picks settings by the true criterion: its result is tuned, **not private**, and stands
for the best that a peer could do.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import dp_event as dpe

import dpjax
from dpjax.core import register_dataclass
from dpjax.privacy import calibrate_noise, split_noise_multiplier
from dpjax.solvers import DPSGD
from dpjax.transforms import OuterProduct, add_gaussian

_EXACT = jax.lax.Precision.HIGHEST
_LARGEST_LP = 300


class Released(NamedTuple):
    """What a peer gives away, and the guarantee of doing so."""

    params: Any
    guarantee: Any


class PureGuarantee(NamedTuple):
    """epsilon-DP, of mechanisms that dp_accounting has no event for."""

    pure_epsilon: float

    def epsilon(self, delta: float) -> float:
        del delta
        return self.pure_epsilon


@dataclasses.dataclass(frozen=True)
class Link:
    """A loss of margin and label: its slope, and public bounds on slope and curvature."""

    name: str
    slope: Callable[[jax.Array, jax.Array], jax.Array]
    slope_bound: Callable[[float, float], float]  # from radius and bound on labels
    curvature: float


SQUARED = Link("squared", lambda m, y: m - y, lambda radius, label: radius + label, 1.0)
LOGISTIC = Link(
    "logistic", lambda m, y: -y * jax.nn.sigmoid(-y * m), lambda radius, label: label, 0.25
)


# games ------------------------------------------------------------------------------------------


def noisy_mean_game(
    records: Any, budget: dpjax.Budget, key: jax.Array, *, method: str | None = None
) -> Released:
    """Releases the mean matrix with Gaussian noise, and solves the noisy game.

    Entries are clipped to [-1, 1], so one of the `n` records adds at most sqrt(dx dy) / n to the
    mean in l2, and replacing it changes the mean by twice that. The noisy mean is clipped to
    [-1, 1] too. `method` is "lp" (by default up to 300 strategies) or "hedge".
    """
    mean = jnp.sum(jnp.clip(records, -1, 1), axis=0, dtype=_sum_type(records)) / len(records)
    return noisy_mean_of(mean, len(records), budget, key, method=method)


def noisy_mean_of(
    mean: jax.Array, n: int, budget: dpjax.Budget, key: jax.Array, *, method: str | None = None
) -> Released:
    """`noisy_mean_game` from the mean matrix `[dx, dy]` of `n` records with entries in [-1, 1]."""
    noise = calibrate_noise(dpe.GaussianDpEvent, budget, relation=_replace_one(budget))
    noisy = _noised(
        mean.astype(jnp.result_type(float)), noise * math.sqrt(math.prod(mean.shape)) / n, key
    )
    if method is None:
        method = "lp" if max(mean.shape) <= _LARGEST_LP else "hedge"
    solve = {"lp": solve_game_by_lp, "hedge": solve_game_by_hedge}[method]
    guarantee = dpjax.Guarantee(dpe.GaussianDpEvent(noise), "replace_one")
    return Released(solve(jnp.clip(noisy, -1, 1)), guarantee)


def solve_game_by_lp(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Optimal strategies by linear programming, on the host."""
    shapes = tuple(jax.ShapeDtypeStruct((d,), matrix.dtype) for d in matrix.shape)
    return jax.pure_callback(_game_by_lp, shapes, matrix, vmap_method="sequential")


def _game_by_lp(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import linprog

    a = np.asarray(matrix, np.float64)
    rows, columns = a.shape
    # min v such that A^T x <= v, over probability vectors x; the multipliers are -y
    found = linprog(
        np.append(np.zeros(rows), 1.0),
        A_ub=np.hstack([a.T, -np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * rows + [(None, None)],
        method="highs",
    )
    x, y = np.maximum(found.x[:-1], 0), np.maximum(-found.ineqlin.marginals, 0)
    dtype = np.asarray(matrix).dtype
    return (x / x.sum()).astype(dtype), (y / y.sum()).astype(dtype)


def solve_game_by_hedge(matrix: jax.Array, steps: int = 4000) -> tuple[jax.Array, jax.Array]:
    """Averages of optimistic multiplicative weights: gap below 4 log(dx dy) max|A| / steps."""
    step_size = 1 / (2 * jnp.maximum(jnp.max(abs(matrix)), jnp.finfo(matrix.dtype).tiny))

    def body(carry: Any, _: None) -> tuple[Any, None]:
        (u, v), (x, y), (sum_x, sum_y) = carry
        gx = jnp.matmul(matrix, y, precision=_EXACT)
        gy = jnp.matmul(x, matrix, precision=_EXACT)
        u, v = u - step_size * gx, v + step_size * gy
        # play against the last losses as if they came once more
        x, y = jax.nn.softmax(u - step_size * gx), jax.nn.softmax(v + step_size * gy)
        return ((u, v), (x, y), (sum_x + x, sum_y + y)), None

    zeros = tuple(jnp.zeros(d, matrix.dtype) for d in matrix.shape)
    start = (zeros, tuple(jnp.full(d, 1 / d, matrix.dtype) for d in matrix.shape), zeros)
    (_, _, sums), _ = jax.lax.scan(body, start, None, length=steps)
    return sums[0] / jnp.sum(sums[0]), sums[1] / jnp.sum(sums[1])


def dpsgda(
    problem: Any, data: Any, budget: dpjax.Budget, key: jax.Array, **options: Any
) -> Released:
    """Noisy projected stochastic gradient descent-ascent, Euclidean.

    `DPSGD` on both blocks at once: Poisson batches, one l2 clip over the pair of gradients and one
    Gaussian, which accounts for them jointly. Settings are those of `DPSGD.for_budget`, but for
    the uniform average of iterates, without which bilinear problems cycle. `problem` is a
    `dpjax.problems.Saddle`.
    """
    return _dpsgd(problem, data, budget, key, {"average": "uniform"} | options)


def _dpsgd(
    problem: Any, data: Any, budget: dpjax.Budget, key: jax.Array, options: dict[str, Any]
) -> Released:
    n = jax.tree.leaves(data)[0].shape[0]
    budget = dataclasses.replace(budget, relation=_replace_one(budget))
    solver = DPSGD.for_budget(problem, n, budget, **options)
    solution = dpjax.solve(solver, problem, data, key=key, progress=False)
    # the noise is concrete even where a sweep traces the step size
    return Released(solution.params, solver.guarantee())


# l1 balls ---------------------------------------------------------------------------------------


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BallGlm:
    """A generalised linear model on the l1 ball, as `DPSGD` takes it; parameters `[p, 1]`."""

    dim: int = dataclasses.field(metadata={"static": True})
    radius: Any
    link: Link = dataclasses.field(metadata={"static": True})

    @property
    def init(self) -> jax.Array:
        return jnp.zeros((self.dim, 1))

    @property
    def num_params(self) -> int:
        return self.dim

    def per_example_gradients(self, params: jax.Array, batch: Any) -> OuterProduct:
        margins = jnp.matmul(batch["x"].astype(params.dtype), params[:, 0], precision=_EXACT)
        return OuterProduct(batch["x"], self.link.slope(margins, batch["y"])[:, None])

    def project(self, params: jax.Array) -> jax.Array:
        return optax.projections.projection_l1_ball(params, self.radius)


def dp_sgd_l1(
    data: Any,
    budget: dpjax.Budget,
    key: jax.Array,
    *,
    radius: float = 1.0,
    link: Link = SQUARED,
    **options: Any,
) -> Released:
    """`DPSGD` with projection on the l1 ball; settings are those of `DPSGD.for_budget`."""
    problem = BallGlm(data["x"].shape[1], radius, link)
    params, guarantee = _dpsgd(problem, data, budget, key, options)
    return Released(params[:, 0], guarantee)


def noisy_statistics(
    data: Any,
    budget: dpjax.Budget,
    key: jax.Array,
    *,
    radius: float = 1.0,
    label_bound: float = 1.0,
    steps: int = 1000,
) -> Released:
    """Releases X'X and X'y once with Gaussian noise, and solves least squares on the l1 ball.

    Features are clipped to [-1, 1] and labels to `label_bound`: a record adds at most
    sqrt(p (p + 1) / 2) to the upper triangle of X'X in l2, and sqrt(p) label_bound to X'y. The two
    share the precision so as to keep the error of the gradient in the ball least. The noisy matrix
    is made positive semidefinite, then accelerated projected gradients run for `steps` steps.
    """
    n, p = data["x"].shape
    relation = _replace_one(budget)
    noise = calibrate_noise(dpe.GaussianDpEvent, budget, relation=relation)
    gram_noise, moment_noise = statistics_noise(p, radius, label_bound, noise)
    gram, moment = clipped_statistics(data, label_bound)
    gram_key, moment_key = jax.random.split(key)
    gram = _noised(gram, gram_noise, gram_key) / n
    moment = _noised(moment, moment_noise, moment_key) / n
    gram = jnp.triu(gram) + jnp.triu(gram, 1).T
    values, vectors = jnp.linalg.eigh(gram)
    values = jnp.maximum(values, 0)
    gram = jnp.matmul(vectors * values[None, :], vectors.T, precision=_EXACT)
    theta = _least_squares_on_ball(gram, moment, values[-1], radius, steps)
    return Released(theta, dpjax.Guarantee(dpe.GaussianDpEvent(noise), relation))


def clipped_statistics(data: Any, label_bound: float) -> tuple[jax.Array, jax.Array]:
    """Upper triangle of X'X, and X'y, of clipped records."""
    dtype = jnp.result_type(float)
    x = jnp.clip(data["x"], -1, 1).astype(dtype)
    y = jnp.clip(jnp.nan_to_num(jnp.asarray(data["y"], dtype)), -label_bound, label_bound)
    gram = jnp.triu(jnp.matmul(x.T, x, precision=_EXACT))
    return gram, jnp.matmul(y, x, precision=_EXACT)


def statistics_noise(
    p: int, radius: float, label_bound: float, noise: float
) -> tuple[float, float]:
    """Standard deviations for the two statistics that together cost one Gaussian of `noise`."""
    gram_bound, moment_bound = math.sqrt(p * (p + 1) / 2), math.sqrt(p) * label_bound
    share = radius * gram_bound / (radius * gram_bound + moment_bound)
    gram_noise, moment_noise = split_noise_multiplier(noise, share)
    return gram_noise * gram_bound, moment_noise * moment_bound


def _noised(value: jax.Array, stddev: float, key: jax.Array) -> jax.Array:
    noise = add_gaussian(stddev)
    return noise.update(value, noise.init(None), key=key)[0]


def _least_squares_on_ball(
    gram: jax.Array, moment: jax.Array, largest: jax.Array, radius: float, steps: int
) -> jax.Array:
    """FISTA for `theta' G theta / 2 - <b, theta>` over the l1 ball."""
    step_size = 1 / jnp.maximum(largest, jnp.finfo(gram.dtype).eps)

    def body(carry: Any, t: jax.Array) -> tuple[Any, None]:
        theta, ahead = carry
        gradient = jnp.matmul(gram, ahead, precision=_EXACT) - moment
        new = optax.projections.projection_l1_ball(ahead - step_size * gradient, radius)
        return (new, new + t / (t + 3) * (new - theta)), None

    zero = jnp.zeros_like(moment)
    (theta, _), _ = jax.lax.scan(body, (zero, zero), jnp.arange(steps, dtype=gram.dtype))
    return theta


def diffprivlib_logistic(
    data: Any, epsilon: float, *, radius: float = 1.0, regulariser: float = 1.0, seed: int = 0
) -> Released:
    """Objective perturbation by diffprivlib, then the nearest point of the l1 ball; epsilon-DP.

    Runs on the host, one seed at a time, and knows neither delta nor the ball.
    """
    try:
        from diffprivlib.models import LogisticRegression
    except ImportError as error:
        raise ImportError(
            "this peer needs diffprivlib and a scikit-learn that it works with: "
            "pip install diffprivlib 'scikit-learn<1.8'"
        ) from error
    x = np.asarray(data["x"], np.float64)
    model = LogisticRegression(
        epsilon=epsilon,
        data_norm=math.sqrt(x.shape[1]),
        C=regulariser,
        fit_intercept=False,
        random_state=seed,
        max_iter=1000,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scipy, about options that diffprivlib passes on
        model.fit(x, (np.asarray(data["y"]) > 0).astype(int))
    theta = jnp.asarray(model.coef_[0], jnp.result_type(float))
    projected = optax.projections.projection_l1_ball(theta, radius)
    return Released(projected, PureGuarantee(float(epsilon)))


# settings ---------------------------------------------------------------------------------------


def best_over(
    run: Callable[..., Any], grid: dict[str, Sequence[Any]]
) -> tuple[dict[str, Any], float, list[tuple[dict[str, Any], float]]]:
    """Settings with the least mean of `run(**settings)`, that mean, and all means: **not private**.

    `run` gives the true criterion, for one or for several seeds.
    """
    tried = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        tried.append((settings, float(np.mean(np.asarray(run(**settings))))))
    settings, value = min(tried, key=lambda pair: (math.isnan(pair[1]), pair[1]))
    return settings, value, tried


def _replace_one(budget: dpjax.Budget) -> str:
    if budget.relation_or("replace_one").name != "REPLACE_ONE":
        raise ValueError(f"relation must be replace_one for the peers, got {budget.relation}")
    return "replace_one"


def _sum_type(records: Any) -> Any:
    """Integers add up exactly."""
    integer = jnp.issubdtype(records.dtype, jnp.integer)
    return jnp.int32 if integer else jnp.promote_types(records.dtype, jnp.float32)
