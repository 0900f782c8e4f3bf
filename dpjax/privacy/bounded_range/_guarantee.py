"""The guarantee of draws of bounded range, and the range that a budget allows."""

import dataclasses
import math

import jax
from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_finite, check_int
from dpjax.privacy._budget import Budget, RelationLike, resolve_relation
from dpjax.privacy._calibrate import agreed_relation, zcdp_budget
from dpjax.privacy._guarantee import Guarantee, quiet_epsilon
from dpjax.privacy.accounting._structure import PureZCDpEvent
from dpjax.privacy.bounded_range import _curve as curves
from dpjax.privacy.bounded_range._curve import bounded_range_eta, bounded_range_rho, check_draws

_COARSE, _FINE = 8, 32  # cells that eta is cut into
_TOLERANCE = 5e-5  # relative, on eta
_NEAR = 1e-3  # of log delta below its target is near enough
_FIRST_STEP = 0.01  # of log eta
_SPARED = 0.999  # of delta, so that the epsilon found at delta is below the budget's too


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BoundedRangeGuarantee:
    """The guarantee of adaptive draws of bounded range eta each: `bounded_range_delta`.

    Guarantee: an upper bound, never above that of the event, which is zCDP. Only the event
    composes with other releases: `Guarantee(guarantee.event, guarantee.relation)` is a guarantee
    for `compose_guarantees` and the ledger.

    Equal and hashable by value, and a static pytree node without leaves.

    Args:
        eta: Finite and >= 0, the bounded range of each draw under the relation. *Public*.
        draws: Number of draws, >= 1. *Public*.
        relation: A `dp_accounting.NeighboringRelation` or its lower-case name.

    Raises:
        TypeError: If eta or draws is no number.
        ValueError: If a value is outside its bound.

    Example:
        >>> from dpjax.privacy import Guarantee
        >>> guarantee = BoundedRangeGuarantee(0.03, 100, "replace_one")
        >>> guarantee.epsilon(1e-9) < 0.96 * Guarantee(guarantee.event).epsilon(1e-9)
        True

    Source: as `bounded_range_delta`.
    """

    eta: float
    draws: int
    relation: RelationLike = "replace_one"

    def __post_init__(self) -> None:
        check_draws(self.eta, self.draws)
        relation = resolve_relation(self.relation)
        vars(self).update(eta=float(self.eta), draws=int(self.draws), relation=relation)

    @property
    def event(self) -> dpe.DpEvent:
        """The draws as zCDP: what a ledger or an accountant composes."""
        draw = PureZCDpEvent(bounded_range_rho(self.eta), epsilon=self.eta)
        return dpe.SelfComposedDpEvent(draw, self.draws)

    def epsilon(self, delta: float) -> float:
        """`bounded_range_epsilon` at delta in (0, 1); at delta = 0 the sum of the etas."""
        if delta == 0:
            return quiet_epsilon(Guarantee(self.event, self.relation), delta)
        return curves.bounded_range_epsilon(self.eta, self.draws, delta)

    def delta(self, epsilon: float) -> float:
        """`bounded_range_delta` at epsilon >= 0."""
        return curves.bounded_range_delta(self.eta, self.draws, epsilon)


def calibrate_bounded_range(
    budget: Budget, draws: int, *, relation: RelationLike | None = None
) -> float:
    r"""The largest bounded range of each of so many equal draws within a budget, rounded down.

    $\max \{\eta : \delta_T(\epsilon; \eta) \le \delta\}$, the best of pure DP, $\eta = \epsilon/T$,
    of zCDP, and of the optimal adaptive composition; see `bounded_range_delta`.

    Guarantee: never above the budget: `bounded_range_delta` of the result, which bounds delta
    with rounding included, was evaluated. Below the exact maximum by about 0.05% up to 250 draws.
    The Gumbel noise or the temperature that follows from eta must not be rounded up.

    Args:
        budget: What must hold. *Public*.
        draws: Number of draws, >= 1; each may depend on the earlier ones. *Public*.
        relation: The relation of the guarantee. Defaults to the budget's.

    Returns:
        eta > 0: the range of the scores' change times the inverse temperature may be this.

    Raises:
        TypeError: If draws is no integer.
        ValueError: If it is below 1, `relation` contradicts the budget's, or hardly any noise is
            needed.

    Example:
        >>> eta = calibrate_bounded_range(Budget(1.0, 1e-6), 10)
        >>> zcdp = bounded_range_eta(zcdp_budget(Budget(1.0, 1e-6)) / 10)
        >>> round(eta / zcdp, 2)
        1.1

    Source: as `bounded_range_delta`.
    """
    check_int("draws", draws, minimum=1)
    agreed_relation(budget, relation)
    draws, epsilon, delta = int(draws), float(budget.epsilon), float(budget.delta)
    pure = math.nextafter(epsilon / draws, 0.0)
    if delta == 0:
        check_finite("epsilon", epsilon)
        return pure
    rho = zcdp_budget(budget, relation=relation) * (1 - 1e-12)
    least = max(pure, bounded_range_eta(rho / draws))
    coarse = _largest(least, draws, budget, _COARSE)
    if coarse > least and curves.delta_at(coarse, draws, epsilon, _FINE) > _SPARED * delta:
        coarse = least
    return _largest(coarse, draws, budget, _FINE)


def _largest(least: float, draws: int, budget: Budget, cells: int) -> float:
    """An eta within the budget near the largest; `least`, from which the search starts, is too."""

    def excess(log_eta: float) -> float:
        """Of log delta over its target; about linear."""
        delta = curves.delta_at(math.exp(log_eta), draws, float(budget.epsilon), cells)
        return math.log(max(delta / (_SPARED * budget.delta), 1e-12))

    low = math.log(least)
    under = excess(low)
    if under >= -_NEAR:
        return least
    step = _FIRST_STEP
    while (over := excess(low + step)) <= 0:
        low, under, step = low + step, over, 2 * step
    high = low + step
    while high - low > _TOLERANCE and under < -_NEAR:
        share = (-_NEAR / 2 - under) / (over - under)
        middle = low + (high - low) * min(max(share, 0.1), 0.9)
        value = excess(middle)
        if value <= 0:
            low, under = middle, value
        else:
            high, over = middle, value
    return max(least, math.exp(low))
