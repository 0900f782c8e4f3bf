"""Objective perturbation: one private minimiser from one draw of noise."""

import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import (
    Problem,
    PyTree,
    check_between,
    check_int,
    check_key,
    check_nonnegative,
    check_type,
    check_unstacked,
    static_field,
)
from dpjax.privacy import (
    Budget,
    ObjectivePerturbationGuarantee,
    SlopeBounds,
    resolve_relation,
)
from dpjax.privacy.objective_perturbation._guarantee import NOISES, mean_square
from dpjax.problems import LinearModel
from dpjax.problems._as_linear_model import own_linear
from dpjax.random._normal import normal
from dpjax.sampling import FullBatch
from dpjax.solvers._request import RELATIONS, check_once, check_values, requested_relation
from dpjax.solvers._summary import register_solver
from dpjax.solvers.erm._draws import (
    CENTRES,
    LABEL_OCTAVES,
    LEAST_BEYOND,
    beyond_drawn,
    drawn_centre,
    drawn_share,
    label_draws,
    length_range,
    shorter_inputs,
    sizes_of_labels,
    typical_octaves,
)
from dpjax.solvers.erm._minimise import Objective, held_slopes, in_double, minimise
from dpjax.solvers.erm._moments import inputs_in_metric, metric_and_lengths, statistics_change
from dpjax.solvers.erm._objective_plan import held_bounds, least_growth, planned
from dpjax.transforms.noise._independent import plus_noise
from dpjax.transforms.noise.correlated._strategy import knorm_noise

_LEAST_LABELS = 3  # one in this many nonzero labels exceeds the threshold
_RECORDS_PER_BEYOND = 2500  # n epsilon: with more records bias outweighs noise
_MOST_BEYOND = 1000
_OUTPUT_SHARE = 0.1  # of the error that noise is expected to cause
# of num_records times the largest slope, as in `Objective.rounding`; seen: 2^-55.9 (n = 4e6)
_ROUNDING = 2.0**-50
_RELEASED = "scale", "lam", "accuracy", "output_scale"  # what the release's law follows from
_LEAST_OUTPUT = 2.0**-16  # of its noise, whatever is drawn: float64 cannot tell less from rounding


class ObjectivePerturbationState(NamedTuple):
    """State of `ObjectivePerturbation`.

    Attributes:
      params: The parameters, `[d]`; released.
      threshold: Of the Huber loss, a scalar; released.
      length: To which features were scaled down, a scalar; released.
      residual: Of the minimiser, a scalar (*secret*; taken out of a solution).
      key: For the noise (*secret*).
    """

    params: jax.Array
    threshold: jax.Array
    length: jax.Array
    residual: jax.Array
    key: jax.Array


def check_linear_model(problem: object) -> None:
    """Raises TypeError unless the problem is a `LinearModel`."""
    check_type("problem", problem, LinearModel, "a dpjax.problems.LinearModel")


def linear_model(problem: Problem, *, drawn: bool = True) -> LinearModel:
    """The problem, or the `LinearModel` equivalent to a `Risk.linear`; else raises TypeError.

    Raises:
      ValueError: If nothing bounds the features, and their length is not drawn.
    """
    own = own_linear(problem)
    if own is not None:
        if not (own.stated or drawn):
            raise ValueError(
                "lipschitz or smoothness must be stated where the length of features is not drawn: "
                "with num_records * epsilon below 500, or length_range=0"
            )
        return own.model
    check_linear_model(problem)
    return cast(LinearModel, problem)


class OfLinearModel:
    """Lets solvers of a `LinearModel` accept an equivalent `Risk.linear`."""

    def restate(self, problem: Problem, arrays: PyTree) -> tuple[Problem, PyTree]:
        """The equivalent model and its records; unchanged if there is no such model.

        Raises:
          ValueError: If a label must be 0 or 1 and is neither.
        """
        own = own_linear(problem)
        return (problem, arrays) if own is None else (own.model, own.records(arrays))


@register_solver
@dataclasses.dataclass(frozen=True)
class ObjectivePerturbation(OfLinearModel):
    r"""The minimiser of the regularised risk of a `LinearModel` and one random linear term.

    $$ w^* = \arg\min_{|w| \le R} \sum_i \ell(\langle x_i, w\rangle, y_i)
    + \tfrac\lambda2 |w|^2 + \langle b, w\rangle $$

    with Gaussian b, or b of density $\propto e^{-|b|/k}$, whose guarantee is pure. The minimiser is
    computed in float64, by Newton's method on the ball (up to 1000 parameters) and accelerated
    projected gradient, until a certificate shows it to lie within `accuracy` of $w^*$; noise of
    scale `output_scale` hides that distance. How long this takes depends on the data; the number
    of steps is bounded, by one that reaches the certificate in real arithmetic.

    With `slope_share` the loss is linear beyond the margin at which its slope reaches that share of
    its bound. Few records have a logistic slope near 1, but noise must cover it.

    The exponential mechanism may first draw a length that one in `longer` rows of features exceeds,
    to which these are then scaled down: noise follows what most rows are, not the stated bound. In
    the objective an intercept's constant c is scaled to $c' = s c$, s c the drawn length if that is
    less, its weight by c / c'. If inputs are then at most a share u as long as before, b is
    multiplied by u, $\lambda$ by $u^2$, `accuracy` and `output_scale` by 1 / u.

    Noise and regulariser drown the directions in which inputs hardly vary, as where columns are off
    centre. With `gram_stddev`, which needs a model without a ball, the second moments
    $G = \sum_i u_i u_i^\top$ are released with Gaussian noise, $u_i$ the features over their
    (drawn) bound, and 1 for an intercept, over $\sqrt 2$ then. The rest is as for inputs
    $v_i = A u_i$, $A = \sqrt\eta\, (G_+ + \eta I)^{-1/2}$ with $\eta$ near the largest eigenvalue
    of noise alone: all directions that stand out from noise count alike. The draw of a length that
    one in `metric_longer` of the $v_i$ exceeds costs as much as the first.

    For `LinearModel("huber")` without a threshold, it also draws one: the size that one in `beyond`
    of the nonzero labels exceeds. b, `accuracy` and `output_scale` are scaled by it. With
    `centre_range`, for a model with an intercept and no ball, labels are first centred near their
    median, drawn likewise, which the intercept adds back.

    Guarantee: `ObjectivePerturbationGuarantee`, for the slopes that the problem enforces; a run is
    refused where these are not `bounds`. It holds in real arithmetic: nothing is claimed of the
    rounding of the draws and of sums in float64, which at the $\lambda$ of `for_budget` do show the
    certificate. The released parameters are multiples of a power of two near 1/32 of
    `output_scale`.

    | input | effect |
    | --- | --- |
    | no record | the minimiser of regulariser and noise |
    | NaN or inf in a record | it contributes nothing |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      bounds: `SlopeBounds` of one record (static).
      scale: sigma of Gaussian noise, or k, a number (data).
      lam: lambda of the **sum**, a number (data).
      accuracy: Largest distance rho of the computed from the exact minimiser, a number
        (data).
      output_scale: Deviation, or scale of K-norm noise, of the noise on the parameters, a
        number (data).
      length_range: Bounded range eta of the draw of the length, which costs as much epsilon, a
        number; 0 for no draw (data).
      longer: One in `longer` rows should be longer, an integer >= 2 (static).
      quantile_range: Bounded range of the draw of the threshold, likewise, a number; None for no
        draw (data).
      growth: lambda is at least this number times the square of the threshold over that of
        `bounds` (data).
      centre_range: Bounded range of the draw of a median, likewise, a number; None for no draw
        (data).
      centres: Intervals of labels that it may be the middle of, an integer >= 2 (static).
      beyond: One in `beyond` labels should exceed the threshold, an integer >= 2 (static).
      slope_share: In (0, 1], slopes are held to this times their bound, a number; None for all of
        it (data).
      gram_stddev: Deviation of the noise on a diagonal entry of G, a number, off the diagonal with
        half the variance; None for no second moments (data).
      metric_longer: One in so many rows should be longer in the metric, an integer >= 2 (static).
      noise: "gaussian" or "gamma", for both noises (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Chaudhuri, Monteleoni and Sarwate 2011; Kifer, Smith and Thakurta 2012; Iyengar et al.
    2019 for approximate minimisers.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    bounds: SlopeBounds = dataclasses.field(metadata={"static": True})
    scale: ArrayLike
    lam: ArrayLike
    accuracy: ArrayLike
    output_scale: ArrayLike
    quantile_range: ArrayLike | None = None
    growth: ArrayLike = 0.0
    beyond: int = static_field(default=_LEAST_LABELS)
    length_range: ArrayLike = 0.0
    longer: int = static_field(default=LEAST_BEYOND)
    noise: str = static_field(default="gaussian")
    relation: str = static_field(default="replace_one")
    slope_share: ArrayLike | None = dataclasses.field(default=None, kw_only=True)
    gram_stddev: ArrayLike | None = dataclasses.field(default=None, kw_only=True)
    metric_longer: int = static_field(default=LEAST_BEYOND, kw_only=True)
    centre_range: ArrayLike | None = dataclasses.field(default=None, kw_only=True)
    centres: int = static_field(default=CENTRES, kw_only=True)

    def __post_init__(self) -> None:
        check_once(self.sampler)
        positive = (*_RELEASED, "quantile_range", "slope_share", "gram_stddev")
        zero = ("growth", "length_range", "centre_range")
        check_values(
            self, positive=positive, nonnegative=zero, noise=NOISES, relation=RELATIONS[:2]
        )
        for name in ("beyond", "longer", "metric_longer", "centres"):
            check_int(name, getattr(self, name), minimum=2)
        check_between("slope_share", self.slope_share, 0, 1)
        if self.gram_stddev is not None and self.noise != "gaussian":
            raise ValueError(f"noise must be 'gaussian' with gram_stddev, got {self.noise!r}")

    @classmethod
    def for_budget(
        cls, problem: Problem, num_records: int, budget: Budget, **overrides: Any
    ) -> "ObjectivePerturbation":
        """The solver whose noise just meets the budget, by the rule of public numbers.

        Args:
          problem: `LinearModel`, or an equivalent `Risk.linear`; of one that bounds no features,
            the bound is 65,536 times the root of their number, for the draw of a length.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one. With
            delta 0 the noise is "gamma".
          **overrides: `lam`, which the noise is then calibrated for, `length_range`, and
            `gram_share`, the share of the precision for second moments; 0 for none. By default
            0.1 of models without a ball whose second moments stand out from their noise.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, the budget cannot be met, or rounding would
            hide how near the minimum is.
          TypeError: If the problem is of another kind, `num_records` no integer, or an override not
            known.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.LinearModel("logistic", 10, radius=2.0)
          >>> solver = ObjectivePerturbation.for_budget(problem, 10_000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        known = ("lam", "length_range", "gram_share")
        relation = requested_relation(cls, num_records, budget, overrides, known)
        usual = length_range(num_records, budget.epsilon)
        draw = overrides.get("length_range", usual)
        check_nonnegative("length_range", draw)
        problem = linear_model(problem, drawn=draw > 0)
        dim, lam = problem.num_params, overrides.get("lam")
        of_threshold, of_centre, centres = label_draws(problem, num_records, budget.epsilon)
        left = Budget(budget.epsilon - of_threshold - of_centre, budget.delta, relation)
        share, least = overrides.get("gram_share"), lam
        while True:
            plan, inaccuracy, slope_share, gram_stddev = planned(
                problem, num_records, left, draw, counted=not of_threshold, lam=least, share=share
            )
            deviation = math.sqrt(mean_square(plan, dim))
            per_record = num_records * plan.bounds.curvature / dim
            error = min(deviation / (per_record + plan.lam), problem.radius or math.inf)
            output = _OUTPUT_SHARE * error / _typical_length(plan.noise, dim)
            least = _ROUNDING * num_records * plan.bounds.slope / (inaccuracy * output / 2)
            if plan.lam >= least:
                break
            if lam is not None or least > per_record:
                raise ValueError(
                    f"lam must be at least {least:.2g} with num_records = {num_records}, got "
                    f"{plan.lam:.2g}: sums in float64 do not show how near the minimum is; "
                    "DPSGD needs no such sums"
                )
            least *= 1.1  # for what else it changes
        longer, _, metric_longer = beyond_drawn(num_records, budget.epsilon, dim)
        fields: dict[str, Any] = {
            "scale": plan.scale,
            "lam": plan.lam,
            "accuracy": inaccuracy * output / 2,
            "output_scale": output,
            "noise": plan.noise,
            "relation": relation,
            "length_range": draw,
            "longer": longer,
            "slope_share": slope_share,
        }
        if gram_stddev is not None:
            fields |= {"gram_stddev": gram_stddev, "metric_longer": metric_longer}
        if of_threshold:
            fields["quantile_range"] = of_threshold
            fields |= {"centre_range": of_centre or None, "centres": centres}
            beyond = round(num_records * budget.epsilon / _RECORDS_PER_BEYOND)
            fields["beyond"] = min(max(beyond, _LEAST_LABELS), _MOST_BEYOND)
            if lam is None:
                fields["growth"] = least_growth(problem, plan, num_records, few=not usual)
        return cls(FullBatch(1), problem.slope_bounds(), **fields)

    def init(self, problem: LinearModel, *, key: jax.Array) -> ObjectivePerturbationState:
        """The state before the step; the key (*secret*) is for the noise."""
        check_key("key", key)
        check_linear_model(problem)
        if problem.slope_bounds() != self.bounds:
            raise ValueError(
                f"problem must have the slope bounds that the noise is for, {self.bounds}, got "
                f"{problem.slope_bounds()}: make the solver for this problem"
            )
        no_ball, regression = problem.radius is None, problem.link != "logistic"
        centred = regression and no_ball and problem.intercept is not None
        for name, where, fits in (
            ("centre_range", "a regression with an intercept and no ball", centred),
            ("quantile_range", 'a "huber" loss', problem.link == "huber"),
            ("gram_stddev", "a problem without a radius", no_ball),
        ):
            if getattr(self, name) is not None and not fits:
                raise ValueError(f"{name} must be None but for {where}, got {getattr(self, name)}")
        return ObjectivePerturbationState(problem.init, *3 * (jnp.zeros(()),), key)

    def step(
        self,
        problem: LinearModel,
        batch: PyTree,
        mask: jax.Array,
        state: ObjectivePerturbationState,
    ) -> tuple[ObjectivePerturbationState, None]:
        """Draws the noise, and minimises on all records."""
        more = (self.gram_stddev is not None) * 2 + (self.centre_range is not None)
        keys = jax.random.split(state.key, 5 + more)
        dtype, centre = state.params.dtype, jnp.zeros(())
        if self.centre_range is not None:
            centre = self._centre(keys[-1], problem, batch, mask).astype(dtype)
            y, most = batch["y"], problem.label_bound
            y = jnp.where(jnp.isinf(y), y, jnp.clip(y, -most, most))
            batch = {**batch, "y": y - centre}
        share = self._share(keys[0], problem, batch, mask).astype(dtype)
        given = problem.feature_lengths, batch, mask, self.longer, self.length_range
        length = drawn_share(keys[3], *given, none_at=typical_octaves(problem)).astype(dtype)
        impl = jax.random.key_impl(state.key)
        records = {name: batch[name] for name in ("x", "y")}
        metric: tuple[jax.Array, ...] = ()
        if self.gram_stddev is not None:
            metric = self._metric(keys[5], keys[6], problem, records, mask, length)
        minimum = in_double(functools.partial(_minimum, problem, self.noise, impl))
        names = ("lam", "scale", "growth", "accuracy", "output_scale")
        numbers = [share, length, *(jnp.asarray(getattr(self, name), dtype) for name in names)]
        held = jnp.asarray(math.inf if self.slope_share is None else self.slope_share, dtype)
        key = jax.random.key_data(keys[1])
        draw = _standard_noise(self.noise, keys[2], state.params)
        noisy, residual = minimum(records, mask, key, draw, metric, *numbers, held)
        if self.centre_range is not None and problem.intercept is not None:
            noisy = noisy.at[-1].add(centre / problem.intercept)
        threshold = (share * problem.largest_threshold).astype(dtype)
        length = length * problem.feature_bound
        return ObjectivePerturbationState(noisy, threshold, length, residual, keys[4]), None

    def _centre(
        self, key: jax.Array, problem: LinearModel, batch: PyTree, mask: jax.Array
    ) -> jax.Array:
        """About the median of the labels of records that count, a scalar."""
        good = jnp.all(jnp.isfinite(batch["x"]), axis=1) & jnp.isfinite(batch["y"])
        sizes = batch["y"].astype(float) / problem.label_bound
        eta = jnp.asarray(self.centre_range, float)
        return problem.label_bound * drawn_centre(key, sizes, mask & good, eta, self.centres)

    def _metric(
        self,
        noise_key: jax.Array,
        length_key: jax.Array,
        problem: LinearModel,
        records: PyTree,
        mask: jax.Array,
        length: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """The metric of noisy second moments `[d, d]`, and the length drawn in it, at most 1."""
        dim, dtype = problem.num_params, length.dtype
        draws = normal(noise_key, (dim, dim), dtype)
        measured = in_double(functools.partial(metric_and_lengths, problem))
        stddev = jnp.asarray(self.gram_stddev, dtype)
        metric, sizes = measured(records, mask, draws, length, stddev)
        longer, eta = self.metric_longer, self.length_range
        share = drawn_share(length_key, lambda part: part, sizes, mask, longer, eta, none_at=0)
        return metric, share.astype(dtype)

    def _share(self, key: jax.Array, problem: LinearModel, *batch: PyTree) -> jax.Array:
        """The threshold over the largest one."""
        if self.quantile_range is None:
            return jnp.ones(())
        draw = sizes_of_labels(problem.largest_threshold), *batch, self.beyond, self.quantile_range
        return drawn_share(key, *draw, octaves=LABEL_OCTAVES)

    def redact(self, state: ObjectivePerturbationState) -> ObjectivePerturbationState:
        """The state without the residual."""
        return state._replace(residual=jnp.zeros_like(state.residual))

    def finalize(self, problem: LinearModel, state: ObjectivePerturbationState) -> jax.Array:
        """The nearest point of the ball."""
        return problem.project(state.params)

    def guarantee(self) -> ObjectivePerturbationGuarantee:
        """The guarantee of the release (host); raises ValueError for stacked fields."""
        check_unstacked(self, *_RELEASED, "slope_share", "gram_stddev")
        numbers = (np.asarray(getattr(self, name)).item() for name in _RELEASED)
        scale, lam, accuracy, output = numbers
        slope_share = 1.0 if self.slope_share is None else np.asarray(self.slope_share).item()
        bounds = held_bounds(self.bounds, slope_share, in_metric=self.gram_stddev is not None)
        relation, hidden = resolve_relation(self.relation), 2 * accuracy / output
        draws = [self.quantile_range or 0.0, self.centre_range or 0.0, self.length_range]
        if self.gram_stddev is not None:
            ratio = statistics_change(1 / np.asarray(self.gram_stddev).item(), 0.0, self.relation)
            # of two Gaussian releases; docs/theory/privacy.md, P9.12
            hidden = math.hypot(hidden, ratio)
            draws.append(self.length_range)
        prior = math.fsum(np.asarray(draw).item() for draw in draws)
        law = self.noise, scale, lam, bounds, hidden, relation, prior
        return ObjectivePerturbationGuarantee(*law, self.sampler.failure_probability())


def _minimum(
    problem: LinearModel,
    noise: str,
    impl: Hashable,
    records: PyTree,
    mask: jax.Array,
    key: jax.Array,
    draw: jax.Array,
    metric: Sequence[jax.Array],
    *numbers: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The minimiser with noise, and its residual, of the type of `share`, computed in float64.

    Of many records the noise is below the last bit that float32 has for the minimiser.
    """
    dtype, dim = draw.dtype, draw.shape[0]
    draw, *metric = (a.astype(jnp.float64) for a in (draw, *metric))
    floats = (a.astype(jnp.float64) for a in numbers)
    share, length, lam, scale, growth, accuracy, output, held = floats
    bounds, threshold = problem.slope_bounds(), share * problem.largest_threshold
    steepest = share * held * bounds.slope / problem.input_bound
    linear = _standard_noise(noise, jax.random.wrap_key_data(key, impl=impl), draw)
    if metric:
        x, y, back = inputs_in_metric(problem, records, mask, length, *metric)
        shorter, per_unit, wider = jnp.ones(()), jnp.ones(()), share
    else:
        shorter, per_unit = shorter_inputs(problem, length)
        x, y = problem.prepare(jax.tree.map(lambda a: a.astype(jnp.float64), records), length)
        x, back = jnp.where(mask[:, None], x, 0), None
        wider = share / shorter  # as the error that noise causes
    lam = jnp.maximum(lam * shorter**2, growth * share**2)
    if problem.radius is not None:  # noise beyond this would swamp the ball
        most = _OUTPUT_SHARE * problem.radius / _typical_length(noise, dim)
        wider = jnp.clip(most / output, share, wider)
    accuracy, output = (jnp.maximum(wider, _LEAST_OUTPUT) * a for a in (accuracy, output))
    objective = Objective(
        x,
        *held_slopes(
            lambda margins: problem.slopes(margins, y, threshold),
            lambda margins: problem.curvatures(margins, y, threshold),
            steepest,
        ),
        lam / per_unit**2,
        share * shorter * scale * linear / per_unit,
        None if problem.radius is None else jnp.asarray(problem.radius, jnp.float64),
        bounds.curvature / problem.input_bound**2,
        per_unit,
    )
    params, residual = minimise(objective, lam * accuracy)
    params = plus_noise(params, output * per_unit, draw)
    return (params if back is None else back @ params).astype(dtype), residual.astype(dtype)


def _typical_length(noise: str, dim: int) -> float:
    """Of a draw of this kind over its scale."""
    return math.sqrt(dim) if noise == "gaussian" else dim + 1


def _standard_noise(kind: str, key: jax.Array, like: jax.Array) -> jax.Array:
    if kind == "gaussian":
        return normal(key, like.shape, like.dtype)
    draw: jax.Array = knorm_noise(key, like, "l2")
    return draw
