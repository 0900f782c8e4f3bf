"""The guarantee of objective perturbation, its noise for a budget, and the public rule for it."""

import dataclasses
import functools
import math

import jax
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import optimize

from dpjax.core._checks import (
    check_choice,
    check_delta,
    check_finite,
    check_int,
    check_nonnegative,
    check_positive,
    check_probability,
)
from dpjax.privacy._budget import (
    Budget,
    RelationLike,
    relation_factor,
    relation_name,
    resolve_relation,
)
from dpjax.privacy._calibrate import agreed_relation
from dpjax.privacy._guarantee import Guarantee, epsilon_line, least_epsilon
from dpjax.privacy.accounting._structure import PureZCDpEvent, UnsupportedEventError
from dpjax.privacy.bounded_range._curve import bounded_range_rho
from dpjax.privacy.objective_perturbation._curve import determinant_epsilon, noise_delta
from dpjax.privacy.objective_perturbation._slopes import SlopeBounds

NOISES = ("gaussian", "gamma")
_ROUNDED_UP = 1 + 1e-6  # so that float32 holds no less of it, and of lam
_DETERMINANT_SHARE = 0.1  # of epsilon, which sets the least regulariser
_MOST_DETERMINANT = 10.0  # a regulariser of beta / 22,000, near enough to none
_NOISE_SHARE = 0.3  # of the ball that the noise may move a regulariser's optimum by
_GROWTH_SHARE, _MOST_GROWTH = 1.5, 4.0  # of the best ridge, and of lambda without it
_FREE_RADIUS = 5.0  # guess of an optimum's margin where there is no ball
_NEGLIGIBLE = 1e-14  # delta up to which a discretised curve goes


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class ObjectivePerturbationGuarantee:
    r"""The guarantee of one minimiser of a sum of losses plus one random linear term.

    $$ w^* = \arg\min_{w \in C} \sum_i \ell(\langle x_i, w\rangle, y_i)
    + \tfrac\lambda2 |w|^2 + \langle b, w\rangle $$

    over any closed convex C. The map from noise to minimiser costs
    $c = \log(1 + \beta/\lambda)$ once. Beyond it, "gamma" noise of density
    $\propto e^{-|b|/k}$ costs $\Delta/k$ and is pure; "gaussian" noise
    $b \sim N(0, \sigma^2 I)$ has at $\epsilon \ge c$ the smaller of a sum of Gaussian profiles over
    the corners of a box of slopes and, under replace-one for slopes of one sign, a bound over the
    cone of two inputs. Below c the curve is a chord.

    Guarantee: an upper bound, if `bounds` hold at every point of C. The scale is for the relation
    at hand: nothing is doubled elsewhere. No event has this curve: `for_ledger` gives a point of
    it, `loss_distribution` all of it, for accounting with other releases. There is no amplification
    by sampling: all records enter.

    Equal and hashable by value, and a static pytree node without leaves.

    Args:
        noise: "gaussian" or "gamma", a uniform direction times a Gamma(d, scale) length.
        scale: sigma or k > 0. *Public*.
        lam: $\lambda$ > 0, which regularises the **sum**. *Public*.
        bounds: `SlopeBounds` of one record.
        tolerance: Cost of the noise that hides how far a solver is from the minimiser, at most
            rho: with Gaussian noise of deviation s the ratio 2 rho / s; with K-norm noise, under
            "gamma", its pure epsilon. Of more Gaussian releases the root of the sum of squares of
            their ratios. *Public*.
        relation: "replace_one" or "add_or_remove_one".
        prior: Pure epsilon of an earlier release that the link's scale came from. *Public*.
        failure_probability: As in `Guarantee`.

    Raises:
        TypeError: If a value is no number.
        ValueError: If one is outside its bound.

    Example:
        >>> from dpjax.privacy import ObjectivePerturbationGuarantee, logistic_slopes
        >>> guarantee = ObjectivePerturbationGuarantee("gaussian", 5.6, 2.66, logistic_slopes(2.0))
        >>> 0.98 < guarantee.epsilon(1e-5) < 1.0
        True

    Source: Chaudhuri, Monteleoni and Sarwate 2011; Kifer, Smith and Thakurta 2012; Redberg, Koskela
    and Wang 2023 (arXiv 2401.00583) for privacy profiles.

    Theory: docs/theory/privacy.md, P9.
    """

    noise: str
    scale: float
    lam: float
    bounds: SlopeBounds
    tolerance: float = 0.0
    relation: RelationLike = "replace_one"
    prior: float = 0.0
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, NOISES)
        for name in ("prior", "failure_probability", "tolerance"):
            check_nonnegative(name, getattr(self, name))
        for name in ("scale", "lam"):
            check_positive(name, getattr(self, name))
        names = ("prior", "scale", "lam", "tolerance")
        floats = {name: float(getattr(self, name)) for name in names}
        vars(self).update(floats, relation=_checked(self.relation))

    def __repr__(self) -> str:
        """Relation, epsilon at the budget's or two common deltas, and noise; never raises."""
        return (
            f"ObjectivePerturbationGuarantee(relation={relation_name(self.relation)!r})\n"
            f"  {epsilon_line(self)}\n"
            f"  {self.noise} noise of scale {self.scale:.4g}, lam {self.lam:.4g}, {self.bounds}"
        )

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with delta(epsilon) <= delta.

        Args:
            delta: In [0, 1). *Public*.

        Returns:
            An upper bound; of "gamma" noise at delta = 0 the pure epsilon.

        Raises:
            ValueError: If delta is outside [0, 1).
            UnsupportedEventError: If delta is 0 and the noise Gaussian.
        """
        check_delta("delta", delta)
        if delta == 0:
            if self.noise == "gaussian":
                raise UnsupportedEventError(
                    'Gaussian noise has no pure epsilon (delta = 0): use noise="gamma"'
                )
            if self.failure_probability:
                raise ValueError("delta must be > 0 to hold a failure probability, got 0")
            return self._pure
        return least_epsilon(self.delta, float(delta))

    def delta(self, epsilon: float) -> float:
        """delta(epsilon), at most 1.

        Args:
            epsilon: Finite and >= 0. *Public*.

        Returns:
            An upper bound.

        Raises:
            ValueError: If epsilon is negative or not finite.
        """
        check_nonnegative("epsilon", epsilon)
        failure = self.failure_probability * (1 + math.exp(min(float(epsilon), 700.0)))
        return min(1.0, self._curve(float(epsilon)) + failure)

    def _curve(self, epsilon: float) -> float:
        """Without failures."""
        if self.noise == "gamma":
            return -math.expm1(min(epsilon - self._pure, 0.0)) / (1 + math.exp(-self._pure))
        beyond = epsilon - self._sure
        relation = resolve_relation(self.relation)
        value = noise_delta(max(beyond, 0.0), self.bounds, self.scale, relation, self.tolerance)
        return value if beyond >= 0 else 1 - math.exp(beyond) * (1 - value)

    def for_ledger(self, delta: float) -> Guarantee:
        r"""A guarantee with an event, for `compose_guarantees` and the ledger.

        Two distributions that are $(\epsilon, \delta)$-close are each within
        $\delta / (1 + e^\epsilon)$ in total variation of two that are $\epsilon$-close; that is the
        failure probability. Together k releases at delta / k each have (1 + e^epsilon) times the
        sum of these for a delta: ask here for less than delta / k.

        Args:
            delta: In [0, 1), the point of the curve to use; 0 for "gamma" noise. *Public*.

        Returns:
            A `Guarantee` with `epsilon(delta)` at most this one's.

        Raises:
            ValueError: If delta is outside [0, 1).
            UnsupportedEventError: If delta is 0 and the noise Gaussian.
        """
        if self.noise == "gamma":
            epsilon, failure = self._pure, self.failure_probability
        else:
            spared = delta * (1 - 1e-9)  # so that rounding does not exceed delta
            epsilon = self.epsilon(spared)
            failure = spared * math.exp(-np.logaddexp(0.0, epsilon))
        event = PureZCDpEvent(bounded_range_rho(2 * epsilon), epsilon=epsilon)
        return Guarantee(event, self.relation, failure)

    def loss_distribution(self, spacing: float | None = None) -> PrivacyLossDistribution:
        """A privacy loss distribution that dominates the mechanism, in both orders of a pair.

        Args:
            spacing: Of the grid of losses, > 0; finer is tighter. None for 0.01, or a hundredth of
                the largest loss if that is less. *Public*.

        Returns:
            A `PrivacyLossDistribution` of `dp_accounting`, to compose with others under the same
            relation, adaptively too.

        Raises:
            ValueError: If the spacing is not positive, or failures are possible.
        """
        check_positive("spacing", spacing)
        if self.failure_probability:
            raise ValueError(
                f"failure_probability must be 0, got {self.failure_probability}: use for_ledger"
            )
        largest = self.epsilon(_NEGLIGIBLE)
        if spacing is None:
            spacing = min(0.01, largest / 100) or 0.01
        reach = math.ceil(largest / spacing) + 1
        steps = np.arange(-reach, reach + 1)
        at = steps * spacing
        above = np.array([self.delta(e) for e in at[reach:]])
        # the other order of the pair, which the same curve bounds
        below = -np.expm1(at[:reach]) + np.exp(at[:reach]) * above[:0:-1]
        values = _convex_envelope(np.exp(at), np.minimum(np.concatenate([below, above]), 1.0))
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(spacing, steps, values)
        return PrivacyLossDistribution(pmf)

    @property
    def _pure(self) -> float:
        change = largest_change(self.bounds, resolve_relation(self.relation)) / self.scale
        return self._sure + change + self.tolerance

    @property
    def _sure(self) -> float:
        return determinant_epsilon(self.bounds.curvature, self.lam) + self.prior


def _convex_envelope(at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The lower convex envelope of points and of (0, 1), at the points."""
    kept: list[tuple[float, float]] = []
    for x, y in [(0.0, 1.0), *zip(at.tolist(), values.tolist(), strict=True)]:
        while len(kept) > 1:
            (x0, y0), (x1, y1) = kept[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            kept.pop()
        kept.append((x, y))
    return np.interp(at, *np.array(kept).T)


def _checked(relation: RelationLike) -> NeighboringRelation:
    resolved = resolve_relation(relation)
    check_choice("relation", resolved.name.lower(), ("replace_one", "add_or_remove_one"))
    return resolved


def largest_change(bounds: SlopeBounds, relation: NeighboringRelation) -> float:
    """The largest change of the gradient of the sum at one point, under the relation."""
    replaced = relation == NeighboringRelation.REPLACE_ONE
    return bounds.largest_change if replaced else bounds.slope


def calibrate_objective_perturbation(
    budget: Budget,
    bounds: SlopeBounds,
    lam: float,
    *,
    noise: str = "gaussian",
    relation: RelationLike | None = None,
    tolerance: float = 0.0,
) -> ObjectivePerturbationGuarantee:
    r"""The least noise of objective perturbation within a budget, rounded up.

    Guarantee: `epsilon(budget.delta) <= budget.epsilon` for the result.

    Args:
        budget: What must hold; the relation defaults to replace-one. *Public*.
        bounds: `SlopeBounds` of one record.
        lam: The regulariser of the sum. *Public*.
        noise: "gaussian", or "gamma", whose guarantee is pure and ignores delta.
        relation: In place of the budget's.
        tolerance: The share of the noise's cost that hides the solver's inaccuracy: 2 rho / s
            over the largest number of deviations that a record shifts the noise, or of the
            epsilon that is left for gamma noise. *Public*.

    Returns:
        `ObjectivePerturbationGuarantee`, whose `scale` is the noise.

    Raises:
        TypeError: If a value is no number.
        ValueError: If it is outside its bound, `relation` contradicts the budget's, or `lam` is so
            small that the determinant costs all of epsilon.

    Example:
        >>> from dpjax.privacy import Budget, calibrate_objective_perturbation, logistic_slopes
        >>> made = calibrate_objective_perturbation(Budget(1.0, 1e-5), logistic_slopes(2.0), 2.6636)
        >>> 5.556 < made.scale < 5.56
        True

    Source: as `ObjectivePerturbationGuarantee`.
    """
    check_finite("epsilon", budget.epsilon)
    check_positive("lam", lam)
    check_choice("noise", noise, NOISES)
    check_nonnegative("tolerance", tolerance)
    if relation is not None:
        agreed_relation(budget, relation)
    resolved = _checked(budget.relation_or("replace_one" if relation is None else relation))
    left = budget.epsilon - determinant_epsilon(bounds.curvature, lam)
    if left <= 0:
        least = bounds.curvature / math.expm1(budget.epsilon)
        raise ValueError(f"lam must be > {least:.3g} at epsilon={budget.epsilon!r}, got {lam!r}")
    if noise == "gamma":
        if tolerance >= 1:
            raise ValueError(f"tolerance must be < 1 with gamma noise, got {tolerance!r}")
        hidden = tolerance * left
        scale = largest_change(bounds, resolved) / (left - hidden) * _ROUNDED_UP
        return ObjectivePerturbationGuarantee(noise, scale, lam, bounds, hidden, resolved)
    check_probability("delta", budget.delta)
    reach = bounds.slope * relation_factor(resolved)

    def excess(log_scale: float) -> float:
        scale = math.exp(log_scale)
        delta = noise_delta(left, bounds, scale, resolved, tolerance * reach / scale)
        return math.log(max(delta, 1e-300) / budget.delta)

    low = high = math.log(reach)
    while excess(high) > 0:
        low, high = high, high + 1
    while excess(low) <= 0:
        low, high = low - 1, low
    root = optimize.brentq(excess, low, high, xtol=1e-9)
    while excess(root) > 0:
        root += 1e-9
    scale = math.exp(root) * _ROUNDED_UP
    hidden = tolerance * reach / scale
    return ObjectivePerturbationGuarantee(noise, scale, lam, bounds, hidden, resolved)


def plan_objective_perturbation(
    budget: Budget,
    bounds: SlopeBounds,
    dim: int,
    radius: float | None,
    *,
    num_records: int | None = None,
    relation: RelationLike | None = None,
    tolerance: float = 0.0,
    lam: float | None = None,
    noise: str | None = None,
) -> ObjectivePerturbationGuarantee:
    r"""Regulariser, kind of noise and scale for a budget, from public numbers.

    One pass: $\lambda_0 = \beta / (e^{0.1 \epsilon} - 1)$; $\sigma_0$ at it; $\lambda$ the larger
    of $\lambda_0$ and, for slopes of both signs on a ball, the best ridge for equal variances and
    an optimum of length R, $\rho = (\sigma_0 d)^2 / (n R^2 \beta)$; for slopes of one sign
    $0.3\,\sigma_0 \sqrt d / R$, then $1.5 \rho$ up to four times what $\lambda$ is without it; R
    counts up to a margin of 10 with the longest input there. Then the noise of smaller mean square.

    Guarantee: `epsilon(budget.delta) <= budget.epsilon` for the result.

    Args:
        budget: What must hold; the relation defaults to replace-one. *Public*.
        bounds: `SlopeBounds` of one record.
        dim: d >= 1. *Public*.
        radius: R of the l2 ball; None for no ball. *Public*.
        num_records: n. *Public*.
        relation: In place of the budget's.
        tolerance: As in `calibrate_objective_perturbation`.
        lam: In place of the rule.
        noise: "gaussian" or "gamma", in place of the choice.

    Returns:
        `ObjectivePerturbationGuarantee`.

    Raises:
        TypeError: If a value is no number.
        ValueError: If it is outside its bound.

    Example:
        >>> from dpjax.privacy import Budget, logistic_slopes, plan_objective_perturbation
        >>> made = plan_objective_perturbation(Budget(1.0, 1e-5), logistic_slopes(2.0), 100, 2.0)
        >>> made.noise, round(made.lam, 1), round(made.scale, 1)
        ('gaussian', 8.4, 5.2)

    Source: constants 0.1 and 0.3 were chosen on synthetic instances; 1.5 and 4 on 16 others, of
    logistic loss (Laplace and normal features, d = 10 to 100, n = 1,000 to 100,000); 10 on 16 more
    (also one-hot columns, falling variances, an offset; d = 5 to 1,000, n = 500 to 40,000, epsilon
    0.25 to 4) with breast cancer, digits and Parkinsons.
    """
    check_int("dim", dim, minimum=1)
    check_positive("radius", radius)
    kinds = [kind for kind in NOISES if budget.delta > 0 or kind == "gamma"]
    if noise is not None:
        check_choice("noise", noise, NOISES)
        kinds = [noise]
    make = functools.partial(calibrate_objective_perturbation, budget, bounds, relation=relation)

    def at(lam: float, tolerance: float = 0.0) -> list[ObjectivePerturbationGuarantee]:
        return [make(lam, noise=kind, tolerance=tolerance) for kind in kinds]

    if lam is None:
        share = min(_DETERMINANT_SHARE * budget.epsilon, _MOST_DETERMINANT)
        lam = bounds.curvature / math.expm1(share)
        deviation = math.sqrt(mean_square(at(lam)[0], dim) / dim)
        free = _FREE_RADIUS / math.sqrt(bounds.curvature) / 2
        width = free if radius is None else float(radius)
        if not bounds.two_sided and num_records is not None:
            width = min(width, 2 * free)  # few optima fill a large ball
        # the best ridge for equal variances and an optimum of this length
        growth = 0.0
        if num_records is not None and not (bounds.two_sided and radius is None):
            growth = (deviation * dim / width) ** 2 / (num_records * bounds.curvature)
        if bounds.two_sided:
            lam = max(lam, growth)
        else:
            lam = max(lam, _NOISE_SHARE * deviation * math.sqrt(dim) / width)
            lam = max(lam, min(_GROWTH_SHARE * growth, _MOST_GROWTH * lam))
    return min(at(lam, tolerance), key=lambda made: mean_square(made, dim))


def mean_square(guarantee: ObjectivePerturbationGuarantee, dim: int) -> float:
    """Of the length of the noise in dimension d."""
    per_dimension = 1 if guarantee.noise == "gaussian" else dim + 1
    return per_dimension * dim * guarantee.scale**2
