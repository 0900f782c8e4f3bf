"""Least squares from the sufficient statistics, released once with Gaussian noise."""

import dataclasses
import functools
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import (
    Problem,
    PyTree,
    check_int,
    check_key,
    check_nonnegative,
    check_unstacked,
    static_field,
)
from dpjax.privacy import Budget, Guarantee, calibrate_noise
from dpjax.privacy._budget import relation_factor
from dpjax.problems import LinearModel
from dpjax.random._normal import normal
from dpjax.sampling import FullBatch
from dpjax.solvers._request import RELATIONS, check_once, check_values, requested_relation
from dpjax.solvers._summary import register_solver
from dpjax.solvers.erm._draws import (
    LEAST_BEYOND,
    beyond_drawn,
    drawn_share,
    length_range,
    pure_event,
    shorter_inputs,
    sizes_of_labels,
    typical_octaves,
)
from dpjax.solvers.erm._minimise import in_double, quadratic_minimiser
from dpjax.solvers.erm._moments import (
    noisy_symmetric,
    scaled_inputs,
    statistics_change,
    sums_of_products,
    with_rounding,
)
from dpjax.solvers.erm._objective_perturbation import (
    ObjectivePerturbation,
    OfLinearModel,
    check_linear_model,
    linear_model,
)
from dpjax.solvers.queries._budget import gaussian_event, gaussian_stddev
from dpjax.transforms.noise._independent import plus_noise

_Number = TypeVar("_Number", float, jax.Array)
_SHRINKAGE = 2.0  # times that for an optimum at the edge of the ball


class SufficientStatisticsState(NamedTuple):
    """State of `SufficientStatistics`.

    Attributes:
      params: The parameters, `[d]`; released.
      gram: Noisy sum of $x x^\\top / \\rho^2$, `[d, d]`, symmetric; released.
      moment: Noisy sum of $x y / (\\rho Y)$, `[d]`; released.
      length: To which features were scaled down, a scalar; released.
      label: To which labels were clipped, a scalar; released.
      key: For the noise (*secret*).
    """

    params: jax.Array
    gram: jax.Array
    moment: jax.Array
    length: jax.Array
    label: jax.Array
    key: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class SufficientStatistics(OfLinearModel):
    r"""Ridge regression on the ball, from noisy second moments.

    $$ w = \arg\min_{|w| \le R} \tfrac12 u^\top \hat G_+ u - \langle \hat m, u\rangle
    + \tfrac\lambda2 |u|^2, \quad u = \rho w / Y $$

    with $\hat G$ and $\hat m$ the sums over records of $x x^\top/\rho^2$ and $x y/(\rho Y)$ with
    Gaussian noise, $\hat G_+$ without negative eigenvalues, $\rho$ the problem's `input_bound` and
    Y its `label_bound`. Noise of off-diagonal entries of $\hat G$ has half the variance, so that
    the noise is isotropic in the Frobenius norm. To each eigenvalue g of $\hat G$ is added
    $\kappa s^2 d / (V^2 \max(g, \sigma \sqrt d))$, with s the deviation of the noise of a gradient
    at the edge of the ball, $V = \rho R / Y$ and $\sigma$ the deviation on the diagonal: Wiener's
    filter for optima of length $R / \sqrt\kappa$.

    The exponential mechanism may first draw a length that one in `longer` rows of features exceeds,
    to which these are then scaled down, and likewise a size to which labels are clipped. Y is then
    that size and $\rho$ the norm of the shorter inputs, with an intercept's constant c cut to
    the drawn length if that is less; the noises share the same cost as is best for these.

    Guarantee: one Gaussian release of both sums, `GaussianDpEvent`, beside which a draw of range
    eta is a `RandomizedResponseDpEvent` of pure epsilon eta, or under add-or-remove-one the
    `LaplaceDpEvent` that dominates it, of at most eta + eta^2 / 4. In units of the noise,
    a = 1 / `gram_stddev` and b = 1 / `moment_stddev`, a record moves the sums by at most
    `statistics_change(a, b, relation)` in the l2 norm. The problem scales and clips each record, so
    this holds for any data. Sums are taken in float64, and the noise is larger by
    `rounding_allowance` and by what adding the rows in blocks may round. The released sums are
    rounded to multiples of a power of two near 1/32 of their noise; the rest is post-processing.

    | input | effect |
    | --- | --- |
    | no record | the minimiser for noise alone |
    | NaN or inf in a record | it contributes nothing |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      gram_stddev: Deviation of the noise on a diagonal entry of the sum of $x x^\top/\rho^2$, a
        number (data).
      moment_stddev: Deviation of the noise on an entry of the sum of $x y/(\rho Y)$, a number
        (data).
      ridge: lambda >= 0, in the units of the sum of $x x^\top/\rho^2$, a number (data).
      shrinkage: kappa >= 0, a number (data).
      length_range: Bounded range eta of the draw of a length, and of one of a label's size, a
        number; 0 for no draws (data).
      longer: One in `longer` rows should be longer, an integer >= 2 (static).
      beyond: One in `beyond` labels should be larger, an integer >= 2 (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Vu and Slavkovic 2009; Wang 2018 (arXiv 1803.02596), with the joint sensitivity computed
    exactly.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    gram_stddev: ArrayLike
    moment_stddev: ArrayLike
    ridge: ArrayLike = 0.0
    shrinkage: ArrayLike = 0.0
    length_range: ArrayLike = 0.0
    longer: int = static_field(default=LEAST_BEYOND)
    beyond: int = static_field(default=LEAST_BEYOND)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        check_once(self.sampler)
        positive, zero = ("gram_stddev", "moment_stddev"), ("ridge", "shrinkage", "length_range")
        check_int("longer", self.longer, minimum=2)
        check_int("beyond", self.beyond, minimum=2)
        check_values(self, positive=positive, nonnegative=zero, relation=RELATIONS[:2])

    @classmethod
    def for_budget(
        cls, problem: Problem, num_records: int, budget: Budget, **overrides: Any
    ) -> "SufficientStatistics":
        r"""The solver whose noise just meets the budget, by the rule of public numbers.

        The two sums share the budget such that the noise of the gradient at the edge of the ball
        is least; kappa is 2, or 0 if a ridge is given.

        Args:
          problem: `LinearModel` of link `"squared"`, or `"huber"` without a threshold, with a ball;
            or an equivalent `Risk.linear`.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta > 0 and relation to meet; the relation defaults to replace-one.
          **overrides: `ridge` and `length_range`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, the problem is no least squares on a ball, or
            the budget cannot be met.
          TypeError: If the problem is of another kind, `num_records` no integer, or an override not
            known.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.LinearModel("squared", 10, radius=1.0)
          >>> solver = SufficientStatistics.for_budget(problem, 10_000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        problem = linear_model(problem)
        edge = _edge(problem)
        known = ("ridge", "length_range")
        relation = requested_relation(cls, num_records, budget, overrides, known)
        draw = overrides.get("length_range", length_range(num_records, budget.epsilon))
        check_nonnegative("length_range", draw)
        ratio = _best_ratio(edge, relation)
        # a hair more, for it is divided and multiplied again
        unit = (1 + 1e-9) * _calibrated(draw, budget, relation)
        gram = unit * statistics_change(1.0, ratio, relation)
        longer, beyond, _ = beyond_drawn(num_records, budget.epsilon, problem.num_params)
        fields: dict[str, Any] = {
            "gram_stddev": gram,
            "moment_stddev": gram / ratio,
            "shrinkage": 0.0 if "ridge" in overrides else _SHRINKAGE,
            "length_range": draw,
            "longer": longer,
            "beyond": beyond,
            "relation": relation,
        }
        return cls(FullBatch(1), **(fields | overrides))

    def init(self, problem: LinearModel, *, key: jax.Array) -> SufficientStatisticsState:
        """The state before the step; the key (*secret*) is for the noise."""
        check_key("key", key)
        _edge(problem)
        zeros, one = problem.init, jnp.ones(())
        return SufficientStatisticsState(zeros, jnp.outer(zeros, zeros), zeros, one, one, key)

    def step(
        self, problem: LinearModel, batch: PyTree, mask: jax.Array, state: SufficientStatisticsState
    ) -> tuple[SufficientStatisticsState, None]:
        """Draws the noisy sums of all records, and solves for the parameters."""
        key, first, second, third, fourth = jax.random.split(state.key, 5)
        dtype = state.params.dtype
        draws = [normal(first, state.gram.shape, dtype), normal(second, state.moment.shape, dtype)]
        labels = sizes_of_labels(problem.label_bound)
        eta, octaves = self.length_range, typical_octaves(problem)
        of_inputs = third, problem.feature_lengths, batch, mask, self.longer, eta
        of_labels = fourth, labels, batch, mask, self.beyond, eta
        length = drawn_share(*of_inputs, none_at=octaves).astype(dtype)
        label = drawn_share(*of_labels, none_at=0).astype(dtype)
        names = ("gram_stddev", "moment_stddev", "ridge", "shrinkage")
        numbers = [length, label, *(jnp.asarray(getattr(self, name), dtype) for name in names)]
        records = {name: batch[name] for name in ("x", "y")}
        solve = in_double(functools.partial(_released, problem, self.relation))
        params, gram, moment = solve(records, mask, *draws, *numbers)
        bounds = length * problem.feature_bound, label * problem.label_bound
        return SufficientStatisticsState(params, gram, moment, *bounds, key), None

    def finalize(self, problem: LinearModel, state: SufficientStatisticsState) -> jax.Array:
        """The nearest point of the ball."""
        return problem.project(state.params)

    def guarantee(self) -> Guarantee:
        """The guarantee of the release (host); raises ValueError for stacked fields."""
        check_unstacked(self, "gram_stddev", "moment_stddev", "length_range")
        gram, moment = (np.asarray(s).item() for s in (self.gram_stddev, self.moment_stddev))
        change = statistics_change(1 / gram, 1 / moment, self.relation)
        event = gaussian_event(change, 1.0, self.relation)
        event = _with_draws(event, np.asarray(self.length_range).item(), self.relation)
        return Guarantee(event, self.relation, self.sampler.failure_probability())


def _with_draws(event: dpe.DpEvent, draw: float, relation: str) -> dpe.DpEvent:
    """With a draw of a length and one of a size, if these cost anything."""
    if draw == 0:
        return event
    return dpe.ComposedDpEvent([event, *2 * [pure_event(draw, relation)]])


def _calibrated(draw: float, budget: Budget, relation: str) -> float:
    """The deviation of noise on what changes by 1."""
    if draw == 0:
        return gaussian_stddev(1.0, dataclasses.replace(budget, relation=relation))
    multiplier = calibrate_noise(
        lambda noise: _with_draws(dpe.GaussianDpEvent(noise), draw, relation),
        budget,
        relation=relation,
    )
    return multiplier / relation_factor(relation)


def _best_ratio(edge: _Number, relation: str) -> _Number:
    """Noise of the sum of products over that of the moments, for a gradient of least noise."""
    if relation == "replace_one":
        return (4 / (1 + (1 + 8 * edge**2) ** 0.5)) ** 0.5  # at most sqrt(2)
    return (2**0.5 / edge) ** 0.5


def _edge(problem: LinearModel) -> float:
    r"""Largest $|u| = \rho |w| / Y$ on the ball."""
    check_linear_model(problem)
    least_squares = problem.link == "squared" or (
        problem.link == "huber" and problem.threshold is None
    )
    if not least_squares or problem.radius is None:
        raise ValueError(
            'problem must have link="squared", or "huber" without a threshold, and a radius, got '
            f"link={problem.link!r}, threshold={problem.threshold}, radius={problem.radius}"
        )
    return problem.input_bound * problem.radius / problem.label_bound


def _released(
    problem: LinearModel, relation: str, records: PyTree, mask: jax.Array, *floats: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Parameters and noisy sums, of the type of draws and numbers, computed in float64."""
    dtype, dim = floats[0].dtype, problem.num_params
    to_gram, to_moment, length, label, *numbers = (leaf.astype(jnp.float64) for leaf in floats)
    label_bound = label * problem.label_bound
    shorter, factors = shorter_inputs(problem, length)
    input_bound = shorter * problem.input_bound
    x, y = scaled_inputs(problem, records, mask, length, factors / input_bound)
    gram, moment = sums_of_products(x, jnp.clip(y / label_bound, -1, 1))
    gram_stddev, moment_stddev, ridge, shrinkage = numbers
    # of the noises for the full bounds: their cost, and the best ratio for the drawn ones
    edge = jnp.asarray(_edge(problem), jnp.float64)
    ratio = gram_stddev / moment_stddev
    drawn = edge * shorter / label
    ratio *= _best_ratio(drawn, relation) / _best_ratio(edge, relation)
    gram_stddev = statistics_change(jnp.ones(()), ratio, relation) / statistics_change(
        1 / gram_stddev, 1 / moment_stddev, relation
    )
    gram_stddev = with_rounding(gram_stddev)
    gram = noisy_symmetric(gram, gram_stddev, to_gram)
    moment = plus_noise(moment, gram_stddev / ratio, to_moment)
    values, basis = jnp.linalg.eigh(gram)
    # of a gradient at the edge of the ball, and what an eigenvalue of noise alone may be
    error, swamped = gram_stddev * jnp.hypot(drawn / 2**0.5, 1 / ratio), gram_stddev * dim**0.5
    added = shrinkage * error**2 * dim / (drawn**2 * jnp.maximum(values, swamped))
    values = jnp.maximum(values, 0) + added + ridge * (edge / drawn) ** 2
    # without a ridge, directions of which the sums say nothing
    values = jnp.maximum(values, jnp.finfo(values.dtype).tiny)
    # the ball is one of parameters with the intercept's own constant
    scaled = basis * jnp.sqrt(values)[None, :] / factors[:, None]
    curvatures, basis = jnp.linalg.eigh(scaled @ scaled.T)
    curvatures = jnp.maximum(curvatures, jnp.finfo(curvatures.dtype).tiny)
    target = basis.T @ (moment / factors)
    params = (basis @ quadratic_minimiser(curvatures, target, drawn)) * (label_bound / input_bound)
    return params.astype(dtype), gram.astype(dtype), moment.astype(dtype)


def linear_model_solver(
    problem: Problem, num_records: int, budget: Budget
) -> ObjectivePerturbation | SufficientStatistics:
    r"""The solver of a linear model that should do best, by public numbers.

    - `LinearModel("squared")` on a ball: `SufficientStatistics`.
    - `LinearModel("huber")` without a threshold, least squares with robust residuals: likewise
      where n epsilon is below 500, too few records to choose a threshold; above that, the Huber
      loss by `ObjectivePerturbation`, whose noise shrinks with the threshold.
    - All others, and delta 0: `ObjectivePerturbation`.

    Guarantee: none of its own; that of the solver. The choice looks at no data.

    Args:
      problem: `LinearModel`, or an equivalent `Risk.linear` (*public*).
      num_records: *Public* number of records (or near it, under add-or-remove-one).
      budget: epsilon, delta and relation to meet (*public*).

    Returns:
      The solver, made by its `for_budget`.

    Raises:
      ValueError: If a value is outside its bound, or the budget cannot be met.
      TypeError: If the problem is of another kind, or `num_records` no integer.

    Example:
      >>> import dpjax
      >>> problem = dpjax.problems.LinearModel("squared", 10, radius=1.0)
      >>> type(linear_model_solver(problem, 10_000, dpjax.Budget(1.0, 1e-6))).__name__
      'SufficientStatistics'

    Source: medians over fresh synthetic instances, of generators and seeds other than those of the
    benchmarks: inputs of equal and of falling variances, one-hot and off centre, residuals of 0.05
    to 0.3, heavy, skewed, labels of two values and mostly 0, d = 5 to 50, n = 100 to 60,000,
    epsilon 0.5 to 3.
    """
    problem = linear_model(problem)
    free = problem.link == "huber" and problem.threshold is None and problem.radius is not None
    if budget.delta > 0 and (
        problem.link == "squared" or (free and not length_range(num_records, budget.epsilon))
    ):
        return SufficientStatistics.for_budget(problem, num_records, budget)
    return ObjectivePerturbation.for_budget(problem, num_records, budget)
