"""The guarantee of private selection, and the largest per-run budget that meets a total."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import numpy as np
from dp_accounting import dp_event as dpe
from dp_accounting.pld.pld_pmf import PLDPmf
from scipy import optimize, special

from dpjax.core._checks import check_finite, check_nonnegative, check_probability
from dpjax.privacy._budget import Budget, RelationLike, relation_factor
from dpjax.privacy._guarantee import Guarantee, least_epsilon, shared_relation
from dpjax.privacy.accounting import _structure as structure
from dpjax.privacy.accounting._accountant import compose_pld
from dpjax.privacy.accounting._joint import Atoms
from dpjax.privacy.accounting._structure import EventId, PureZCDpEvent, UnsupportedEventError
from dpjax.privacy.objective_perturbation._guarantee import ObjectivePerturbationGuarantee
from dpjax.privacy.selection import _curve as curves
from dpjax.privacy.selection._curve import RunsLaw

_Run = Guarantee | ObjectivePerturbationGuarantee
Base = _Run | tuple[_Run, ...]
_Curve = EventId | ObjectivePerturbationGuarantee

_REST = 1e-12  # P-mass of the largest losses, which the event leaves to the failure probability
_LOSSES = 4000  # of the rounded loss whose divergences are computed
_ORDER_STEP = 0.02  # relative
_LOG_DELTA = math.log(1e6)  # at which the line is chosen
_TOLERANCE = 1e-4  # of log noise
_FOUND = 2e-6  # relative, to which `least_epsilon` finds epsilon
_LOWEST_NOISE, _HIGHEST_NOISE = 1e-3, 1e12


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class SelectionGuarantee(Guarantee):
    r"""The guarantee of the best of a secret random number of runs.

    Runs are independent and alike: each draws its candidate from a public law, trains and scores.
    Only the run of highest score leaves; the number of runs, the other runs and the place of the
    winner stay secret. Each record concerns one of the `bases` (training and held-out scoring), or
    there is one base, the composition of all that a run does. Where candidates have other events,
    a base is a tuple of theirs: the curve of one run is a mean of theirs, and the largest of them
    at each epsilon stands for it. In each direction, with the likelihood ratio r of a base at
    quantile q,

    $\delta(\epsilon) \le \int_0^1 f'(q) [1 - e^\epsilon / (R(q) r(q))]_+ dq$

    plus $(1 + e^\epsilon)\,E[K]$ times the failure probability of that base.

    Guarantee: an upper bound in both directions, rounding of the loss included. `event` and
    `failure_probability` are a zCDP bound of the same selection, which costs more; they are what
    `compose_guarantees` and `Ledger.spend` take. So a selection made for a whole budget does not
    fit a ledger of that budget; use `Ledger.largest`.

    Args:
        bases: Guarantees of one run, one for each part of the records, or for each a tuple of those
            that a candidate may have; `Guarantee` or `ObjectivePerturbationGuarantee`. *Public*.
        runs: The law of the number of runs. *Public*.

    Raises:
        UnsupportedEventError: If a base has no privacy loss distribution.
        ValueError: If there is no base, relations differ, or failures add up to 1.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> one = Guarantee(dpe.GaussianDpEvent(1 / 0.3))
        >>> best = SelectionGuarantee((one,), RunsLaw(16.0, 1.0, max_runs=64))
        >>> round(one.epsilon(1e-5), 2), round(best.epsilon(1e-5), 2)
        (1.13, 1.99)

    Source: the mechanism: Liu and Talwar (2019), "Private selection from private candidates";
    Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy". The bound
    is derived from the distribution function $f(F)$ of the winner's score.

    Theory: docs/theory/privacy.md, P10.
    """

    event: dpe.DpEvent = dataclasses.field(init=False)
    relation: RelationLike = dataclasses.field(init=False)
    failure_probability: float = dataclasses.field(init=False)
    bases: tuple[Base, ...]
    runs: RunsLaw

    def __post_init__(self) -> None:
        runs = [each for base in self.bases for each in _each(base)]
        relation = shared_relation(runs, (Guarantee, ObjectivePerturbationGuarantee))
        event, rest = _zcdp(self._losses)
        failure = self.runs.mean * max(map(_failing, self.bases))  # a union over runs that count
        vars(self).update(event=event, relation=relation, failure_probability=failure + rest)
        super().__post_init__()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SelectionGuarantee):
            return self.bases == other.bases and self.runs == other.runs
        return super().__eq__(other)

    __hash__ = Guarantee.__hash__

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with delta(epsilon) <= delta, or infinity.

        Args:
            delta: In (0, 1). *Public*.

        Returns:
            An upper bound on the true epsilon.

        Raises:
            TypeError: If delta is no number.
            ValueError: If it is outside its bound.
        """
        check_probability("delta of a selection", delta)
        return least_epsilon(self.delta, delta)

    def delta(self, epsilon: float) -> float:
        """The theorem's bound at epsilon >= 0, failures included, at most 1."""
        check_nonnegative("epsilon", epsilon)
        # a record concerns one base: runs of the others are the same on both data sets
        return min(1.0, max(_delta(base, self.runs, epsilon) for base in self.bases))

    def __repr__(self) -> str:
        """The law of the number of runs and the guarantee of one."""
        one = "; ".join(" or ".join(map(repr, _each(base))) for base in self.bases)
        return f"SelectionGuarantee({self.runs}, of {one})"

    @property
    def _losses(self) -> list[Atoms]:
        """The privacy losses, of each base in each direction."""
        return [loss for base in self.bases for loss in _selected(_ids(base), self.runs)]


def _each(base: Base) -> tuple[_Run, ...]:
    return base if isinstance(base, tuple) else (base,)


def _ids(base: Base) -> frozenset[_Curve]:
    """Hashable keys of these runs' curves, without failures."""
    return frozenset(
        one._id if isinstance(one, Guarantee) else dataclasses.replace(one, failure_probability=0.0)
        for one in _each(base)
    )


def _failing(base: Base) -> float:
    return max(float(each.failure_probability) for each in _each(base))


def _delta(base: Base, runs: RunsLaw, epsilon: float) -> float:
    """Of the selection for records of this base, failures included."""
    failure = runs.mean * _failing(base) * (1 + math.exp(min(epsilon, 700.0)))
    return failure + max(curves.hockey_stick(loss, epsilon) for loss in _selected(_ids(base), runs))


@functools.lru_cache(maxsize=16)
def _selected(which: frozenset[_Curve], runs: RunsLaw) -> list[Atoms]:
    """The losses of the selection in each direction, from those of one run."""
    parts = {one: _parts(one) for one in which if isinstance(one, EventId)}
    own = [one.loss_distribution() for one in which if not isinstance(one, EventId)]
    if not own and not any(parts.values()):
        return [Atoms(np.zeros(1), np.ones(1), 0.0)]
    if len(which) == len(parts) == 1:
        ((one, events),) = parts.items()
        if len(events) == 1 and isinstance(events[0][0], dpe.GaussianDpEvent):
            shift = relation_factor(one.relation) / events[0][0].noise_multiplier
            return [curves.selected(curves.gaussian_cells(shift), runs)]
    totals = [compose_pld(events, one.relation) for one, events in parts.items() if events] + own
    directions = [[total._pmf_remove for total in totals]]
    if not all(total._symmetric for total in totals):
        directions.append([total._pmf_add for total in totals])
    return [curves.selected(curves.cells_of(_worst(pmfs)), runs) for pmfs in directions]


def _worst(pmfs: list[PLDPmf]) -> Atoms:
    """A loss that stands for all of these."""
    atoms = [curves.atoms_of(pmf) for pmf in pmfs]
    interval = max(pmf._discretization for pmf in pmfs)
    return atoms[0] if len(atoms) == 1 else curves.worst(atoms, interval)


def _parts(which: EventId) -> list[tuple[dpe.DpEvent, int]]:
    """What is composed in one run; raises UnsupportedEventError if it has no loss distribution."""
    parts = structure.flatten(which.event)
    if any(isinstance(part, dpe.NonPrivateDpEvent) for part, _ in parts):
        raise UnsupportedEventError("a selection among runs that are not private has no guarantee")
    if structure.route(parts, which.relation) != "pld":
        raise UnsupportedEventError(
            f"a selection needs runs with a privacy loss distribution; {which.event} has only "
            "Rényi divergences"
        )
    return parts


def _zcdp(losses: list[Atoms]) -> tuple[dpe.DpEvent, float]:
    """An event that bounds all of these losses, and the mass that it leaves out.

    The largest losses, of mass `rest`, are left out and the rest is scaled to a distribution: the
    total variation between the two is `rest`, which is declared as a failure probability. Of the
    lines xi + rho * order above the divergences, the one of least epsilon at a common delta.
    """
    cut = [_without_largest(loss) for loss in losses]
    epsilon, rest = (max(values) for values in zip(*((e, r) for _, e, r in cut), strict=True))
    if not 0 < epsilon < math.inf:
        return dpe.NonPrivateDpEvent() if epsilon else dpe.NoOpDpEvent(), min(rest, 0.5)
    step = 1 + _ORDER_STEP
    count = math.ceil(math.log(max(1e3, 100 * epsilon)) / math.log(step))
    orders = step ** np.arange(count + 1)
    below = [max(_divergence(kept, order) for kept, _, _ in cut) for order in orders[1:]]
    divergence = np.array([*below, epsilon])
    # a divergence bounds those below it, down to the order before
    lines = [(xi, max(0.0, float(np.max((divergence - xi) / orders)))) for xi in (0.0, *divergence)]
    xi, rho = min(lines, key=lambda line: sum(line) + 2 * math.sqrt(line[1] * _LOG_DELTA))
    return PureZCDpEvent(rho * (1 + 1e-9), float(xi) * (1 + 1e-9), epsilon), rest


def _divergence(atoms: Atoms, order: float) -> float:
    return float(special.logsumexp(np.log(atoms.mass) + (order - 1) * atoms.loss)) / (order - 1)


def _without_largest(atoms: Atoms) -> tuple[Atoms, float, float]:
    """Atoms scaled to mass 1 on a coarse grid, rounded up; their largest loss; the mass left out.

    The scaling adds -log(1 - rest) to losses, for at the same Q it raises P.
    """
    order = np.argsort(-atoms.loss)
    loss, mass = atoms.loss[order], atoms.mass[order]
    above = atoms.infinite + np.cumsum(mass)
    first = int(np.searchsorted(above, max(_REST, atoms.infinite), side="right"))
    rest = atoms.infinite if first == 0 else float(above[first - 1])
    if first >= loss.size or rest >= 1:
        return Atoms(np.zeros(1), np.ones(1), 0.0), math.inf, min(rest, 1.0)
    loss, mass = loss[first:], mass[first:]
    grid = np.linspace(float(loss[-1]), float(loss[0]), _LOSSES)
    place = np.minimum(np.searchsorted(grid, loss), _LOSSES - 1)
    binned = np.bincount(place, weights=mass, minlength=_LOSSES)
    used = binned > 0
    scaled = Atoms(grid[used] - math.log1p(-rest), binned[used] / (1 - rest), 0.0)
    return scaled, max(float(scaled.loss[-1]), 0.0), rest


def calibrate_selection(
    make_guarantee: Callable[[float], Base], runs: RunsLaw, budget: Budget
) -> float:
    """The least noise multiplier of one run with which the selection meets the budget.

    min { z : SelectionGuarantee((make_guarantee(z),), runs).epsilon(delta) <= epsilon }

    Guarantee: never above the budget, which was evaluated at the result; above the exact minimum
    by less than a factor 1.0003.

    Args:
        make_guarantee: From a noise multiplier to the guarantee of one run, or to a tuple of those
            that it may have. *Public*.
        runs: The law of the number of runs. *Public*.
        budget: What the selection must meet. *Public*.

    Returns:
        The noise multiplier.

    Raises:
        UnsupportedEventError: If a run has no privacy loss distribution.
        ValueError: If no noise, or hardly any, meets the budget; if its delta is 0.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> runs, budget = RunsLaw(16.0), Budget(1.0, 1e-5)
        >>> z = calibrate_selection(lambda z: Guarantee(dpe.GaussianDpEvent(z)), runs, budget)
        >>> round(z / 3.7306, 2)
        1.56

    Source: as `SelectionGuarantee`.
    """
    check_finite("epsilon", budget.epsilon)
    target = budget.epsilon * (1 - _FOUND)
    if budget.delta == 0:
        raise ValueError("budget.delta must be > 0 for a selection, got 0")

    @functools.cache
    def excess(log_noise: float) -> float:
        """Of log delta over its target; falls in the noise."""
        total = _delta(make_guarantee(math.exp(log_noise)), runs, target)
        return math.log(max(total / budget.delta, 1e-12))

    failure = runs.mean * _failing(make_guarantee(1.0))
    if failure * (1 + math.exp(min(budget.epsilon, 700.0))) >= budget.delta:
        raise ValueError(
            f"no noise meets {budget}: delta must hold (1 + e^epsilon) times the failure "
            f"probability of {runs.mean:g} runs, {failure:.3g}"
        )
    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(2)
        if high > math.log(_HIGHEST_NOISE):
            raise ValueError(f"no noise meets {budget} for a selection among {runs.mean:g} runs")
    while low == high or excess(low) <= 0:
        low, high = low - math.log(2), low if excess(low) <= 0 else high
        if low < math.log(_LOWEST_NOISE):
            raise ValueError(f"{budget} needs hardly any noise")
    root = optimize.brentq(excess, low, high, xtol=_TOLERANCE, rtol=1e-12)
    for step in range(3):
        if excess(root + step * _TOLERANCE) <= 0:
            return math.exp(root + step * _TOLERANCE)
    return math.exp(high)
