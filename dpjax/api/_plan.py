"""Choice of a method by public numbers alone."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import solvers
from dpjax.api._release import METHODS, choose
from dpjax.core import PyTree, Solver, check_choice, check_type
from dpjax.geometry import L1Ball, Simplex
from dpjax.papers._anytime_mirror_descent import AnytimeMirrorDescent
from dpjax.papers._saddle_mirror_descent import SaddleMirrorDescent
from dpjax.papers.online._online_to_batch import OnlineToBatch
from dpjax.privacy import Budget, calibrate_gaussian, check_budget
from dpjax.privacy._budget import relation_name
from dpjax.problems import LinearModel, QueryRelease, RateConstrained, Risk, Saddle, SimplexRisk
from dpjax.problems._as_linear_model import own_linear
from dpjax.problems._link_slopes import steepest_slope
from dpjax.problems._rate_constrained import LinearLogits, cross_entropy
from dpjax.solvers._request import RELATIONS, candidates
from dpjax.solvers._summary import check_single_constants
from dpjax.solvers._vertex_problem import one_block
from dpjax.solvers.erm._draws import length_range
from dpjax.solvers.erm._minimise import MOST_NEWTON_DIM
from dpjax.solvers.nonconvex._plan import goes_far

_SMALL_GAME = 2_000  # parameters up to which descent on both players beats draws of vertices
_MOST_TOLD = 0.065  # noise over signal, up to which second moments pay
_POLISHED = 0.1  # of the excess of draws alone: about the median of 28 instances
_LESS = "no prediction: only Gaussian noise on answers and on cells are compared"
_FLOPS, _STEP = 2e9, 5e-5  # of one CPU core, and seconds that a step costs by itself


class Candidate(NamedTuple):
    """A method that could solve a problem.

    Attributes:
      method: Name, as `fit(method=)` takes it.
      predicted: Predicted excess loss, which ranks methods; None where no formula is known.
      seconds: Rough time of the run on one CPU core.
      memory: Rough bytes beside the data.
      why_not: Why it was not chosen; empty for the choice.
    """

    method: str
    predicted: float | None
    seconds: float | None
    memory: float | None
    why_not: str


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """The method that `fit` would run, and why; made of *public* numbers alone.

    Attributes:
      method: Its name.
      solver: Calibrated to the budget.
      reason: One sentence.
      considered: All methods, the choice first.
    """

    method: str
    solver: Solver
    reason: str
    considered: tuple[Candidate, ...]

    def __repr__(self) -> str:
        """A table, a line a method."""
        return f"{self.method}: {self.reason}\n{table_of(self.considered)}"


def table_of(considered: tuple[Candidate, ...]) -> str:
    """The candidates as text, in columns."""
    rows: list[tuple[str, ...]] = [("method", "predicted excess", "seconds", "MiB", "why not")]
    for c in considered:
        numbers = (c.predicted, c.seconds, None if c.memory is None else c.memory / 2**20)
        shown = ("" if number is None else f"{number:.2g}" for number in numbers)
        rows.append((c.method, *shown, c.why_not))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    padded = ([*map(str.ljust, row[:4], widths), row[4]] for row in rows)
    return "\n".join("  " + "  ".join(row).rstrip() for row in padded)


class _Offer(NamedTuple):
    """A method, how to make its solver, and what speaks for it or against it."""

    method: str
    make: Callable[..., Solver]
    predicted: float | None = None
    remark: str = ""


def _offer(kind: Any, predicted: float | None = None, remark: str = "") -> _Offer:
    """That of a class of solvers, by its name in small letters."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    return _Offer(name, kind.for_budget, predicted, remark)


def check_problem(problem: object) -> None:
    """Raises TypeError unless it is one that `fit` solves."""
    names = ", ".join(kind.__name__ for kind in _KINDS)
    check_type("problem", problem, tuple(_KINDS), f"one of {names}", ": it comes first")


def plan(
    problem: PyTree, num_records: int, budget: Budget, *, method: str = "auto", **options: Any
) -> Plan:
    r"""The solver that should do best on a problem, by public numbers, and what was considered.

    Predictions rank methods and are no bounds. With $\phi = \sqrt d / (n \mu)$, mu the Gaussian
    equivalent of the budget, R the radius and L the Lipschitz constant:

    | problem | method | predicted excess |
    | --- | --- | --- |
    | `LinearModel` | `linear_model_solver` | $R L \phi$, plus the bias of its regulariser |
    | `Risk.linear` with a logistic or squared loss, d up to 1000 | the same | the same |
    | logistic loss, features not bounded, n epsilon of 500 or more | the same | none |
    | `Risk` | `DPSGD` | $R L \phi$ |
    | `Risk.linear`, neither smooth nor convex | `OnlineToNonconvex` | none |
    | `SimplexRisk`, l1 ball or simplex | `PolishedFrankWolfe` | a tenth of the next |
    | `SimplexRisk` | `FrankWolfe` | its plan's typical error |
    | `SimplexRisk`, each record once | `AnytimeMirrorDescent` | its plan's bound |

    The rates in d, n and mu are those of Bassily, Smith and Thakurta (2014). On 21 fresh instances
    of logistic and squared loss (Laplace features, d = 8 to 150, n = 1,500 to 60,000, epsilon 0.25
    to 4) `DPSGD` had lower error than `OnlineToBatch` on all but three, by up to ten times. A
    `RateConstrained` problem takes `RateConstrainedSGDA`; without constraints `DPSGD`, or, if it is
    linear with cross-entropy and noise is small, `PreconditionedSGD`; a game
    `solver_for_game`; other saddle points descent on both players up to 2,000 parameters, and
    draws of vertices beyond; a `QueryRelease` what `dpjax.release` takes.

    Guarantee: none of its own; that of the solver. No data are looked at.

    Args:
      problem: `LinearModel`, `Risk`, `RateConstrained`, `SimplexRisk`, `Saddle` or `QueryRelease`
        (*public*).
      num_records: *Public* number of records (or near it, under add-or-remove-one).
      budget: epsilon, delta and relation to meet.
      method: `"auto"`, or a name from the table that a plan prints.
      **options: Of the `for_budget` of a method that is named; none with `"auto"`.

    Returns:
      A `Plan`; its repr is a table.

    Raises:
      TypeError: If the problem is of another kind, or an option no field of the method.
      ValueError: If a value is outside its bound, the method is none of the problem's, or the
        budget cannot be met.

    Example:
      >>> import dpjax
      >>> problem = dpjax.problems.LinearModel("logistic", 10, radius=2.0)
      >>> dpjax.plan(problem, 10_000, dpjax.Budget(1.0, 1e-6)).method
      'objective_perturbation'
    """
    check_budget(budget, num_records)
    check_problem(problem)
    check_single_constants(problem)
    make_offers = next(make for kind, make in _KINDS.items() if isinstance(problem, kind))
    offers = list(make_offers(problem, num_records, budget))
    check_choice("method", method, ("auto", *(offer.method for offer in offers)))
    if options and method == "auto":
        raise ValueError(f"options need a method other than 'auto', got {sorted(options)}")
    if method == "auto":
        # the first, where there is no formula: offers come in order of preference
        chosen = min(offers, key=lambda o: math.inf if o.predicted is None else o.predicted)
        reason = chosen.remark or f"least predicted excess, {chosen.predicted:.2g}"
    else:
        chosen = next(offer for offer in offers if offer.method == method)
        reason = "asked for"
    solver = chosen.make(problem, num_records, budget, **options)
    others = [offer for offer in offers if offer is not chosen]
    with candidates():
        rejected = [_rejected(each, chosen, problem, num_records, budget) for each in others]
    considered = (_candidate(chosen, solver, problem, num_records, ""), *rejected)
    return Plan(chosen.method, solver, reason, considered)


def _rejected(
    offer: _Offer, chosen: _Offer, problem: PyTree, num_records: int, budget: Budget
) -> Candidate:
    """A method that was not chosen; one that the budget does not allow says so."""
    try:
        solver = offer.make(problem, num_records, budget)
    except (TypeError, ValueError) as error:
        return Candidate(offer.method, offer.predicted, None, None, str(error).splitlines()[0])
    why = offer.remark
    if not why and offer.predicted is not None and chosen.predicted is not None:
        why = f"predicted {offer.predicted / chosen.predicted:.2g} times the excess"
    return _candidate(offer, solver, problem, num_records, why or "not asked for")


def _candidate(
    offer: _Offer, solver: Solver, problem: PyTree, num_records: int, why_not: str
) -> Candidate:
    sampler, params = solver.sampler, getattr(problem, "num_params", None)
    if params is None:  # queries
        cells = problem.workload.universe_size
        return Candidate(offer.method, offer.predicted, None, 8.0 * 4 * cells, why_not)
    batch = num_records * sampler.participation_rate(num_records)
    seconds = sampler.steps * (6 * batch * params / _FLOPS + _STEP)
    return Candidate(offer.method, offer.predicted, seconds, 4.0 * (batch + 8) * params, why_not)


def _noise(problem: PyTree, num_records: int, budget: Budget) -> float:
    """sqrt(d) / (n mu), the length of the noise in a mean gradient over the bound on one."""
    if not math.isfinite(budget.epsilon):
        return 0.0
    if budget.delta == 0:
        return problem.num_params / (num_records * budget.epsilon)
    relation = budget.relation_or("add_or_remove_one")
    multiplier = calibrate_gaussian(1.0, 1, budget, relation=relation)
    return math.sqrt(problem.num_params) * multiplier / num_records


def _excess(problem: LinearModel, n: int, budget: Budget) -> float:
    """What noise alone adds, $R B \\phi$."""
    radius = 1.0 if problem.radius is None else problem.radius
    return radius * problem.feature_bound * min(1.0, _noise(problem, n, budget))


def _of_linear_model(problem: LinearModel, n: int, budget: Budget) -> Iterator[_Offer]:
    exact = _one_draw(problem, n, budget)
    if exact is not None:
        yield exact
    yield _offer(solvers.DPSGD, 2 * _excess(problem, n, budget))


def _one_draw(problem: LinearModel, n: int, budget: Budget) -> _Offer | None:
    """The solver of linear models; None under a relation that it does not support."""
    if budget.relation is not None and relation_name(budget.relation) not in RELATIONS[:2]:
        return None
    with candidates():
        solver = solvers.linear_model_solver(problem, n, budget)
    return _offer(type(solver), _excess(problem, n, budget))


def _of_risk(problem: Risk, n: int, budget: Budget) -> Iterator[_Offer]:
    constants = problem.radius, problem.lipschitz
    own = own_linear(problem) if problem.num_params <= MOST_NEWTON_DIM else None
    if own is not None and not own.stated and not 0 < length_range(n, budget.epsilon) < math.inf:
        own = None
    # the default relation of the other methods
    stated = dataclasses.replace(budget, relation=budget.relation_or("add_or_remove_one"))
    exact = None if own is None else _one_draw(own.model, n, stated)
    if own is not None and exact is not None:
        remark = f"recognised by its values as the {own.model.link} loss of a `LinearModel`"
        make = exact.make
        if not own.stated:
            remark += ", with features as long as is drawn"
            exact = exact._replace(predicted=None)
        yield exact._replace(make=lambda p, n, _, **more: make(p, n, stated, **more), remark=remark)
    if goes_far(problem):
        far, near = "neither smooth nor convex", "up to 40 times the error where the optimum is far"
        convex = steepest_slope(problem) is not None
        if convex:
            far = "larger error, except with few records at small epsilon"
            near = "convex, and not smooth"
        distant = _offer(solvers.OnlineToNonconvex, None, far)
        plain = _offer(solvers.DPSGD, None, near)
        yield from (plain, distant) if convex else (distant, plain)
        return
    if not problem.factored or any(constant is None for constant in constants):
        why = "takes a loss of any form; `Risk.linear` has more methods, for inner products"
        if problem.factored:
            why = "other methods need radius and lipschitz, which are not both stated"
        yield _offer(solvers.DPSGD, None, why)
        return
    if own is not None and exact is not None:
        excess = 2 * _excess(own.model, n, stated)
    else:
        radius, lipschitz = (float(np.asarray(constant)) for constant in constants)
        excess = radius * lipschitz * min(1.0, _noise(problem, n, budget))
    yield _offer(solvers.DPSGD, excess)
    remark = "higher error on 18 of 21 fresh instances, at best 0.7 times that of `dpsgd`"
    yield _offer(OnlineToBatch, None, remark)


def _of_rates(problem: RateConstrained, n: int, budget: Budget) -> Iterator[_Offer]:
    if problem.num_constraints:
        why = "rates are constrained"
        yield _offer(solvers.RateConstrainedSGDA, None, why)
        return
    plain = _offer(solvers.DPSGD, None, "no rate is constrained")
    logits = problem.logits
    if not isinstance(logits, LinearLogits) or problem.loss is not cross_entropy:
        yield plain
        return
    width, classes = logits.num_features, logits.num_classes
    # of gradients, and of second moments, which are told if they are far from all alike
    noise = _noise(problem, n, budget) * max(1, width / (18 * math.sqrt(classes)))
    told = noise <= _MOST_TOLD and width <= MOST_NEWTON_DIM
    why = f"noise over signal is {noise:.2g}, "
    why += f"at most {_MOST_TOLD}" if told else f"above {_MOST_TOLD}: it hides second moments"
    if width > MOST_NEWTON_DIM:
        why = f"{width} features, above {MOST_NEWTON_DIM}: no second moments of so many"
    fast = _offer(solvers.PreconditionedSGD, None, why)
    slow = plain._replace(remark="slow along directions in which inputs vary little")
    yield from (fast, slow) if told else (plain._replace(remark=why), fast._replace(remark=why))


def _of_vertices(problem: SimplexRisk, n: int, budget: Budget) -> Iterator[_Offer]:
    best = solvers.FrankWolfe.plan(problem, n, budget)
    _, smooth = one_block(problem)
    # the first term of the bound counts .09, as in the plan
    typical = max(best.bound - 0.91 * 8 * smooth / (best.steps + 2), 0.0)
    if budget.delta > 0 and isinstance(problem.domains[0], L1Ball | Simplex):
        yield _offer(solvers.PolishedFrankWolfe, _POLISHED * typical)
    yield _offer(solvers.FrankWolfe, typical)
    if budget.delta > 0:
        once = AnytimeMirrorDescent.plan(problem, n, budget).bound
        remark = "reads each record once: for streams, and data too large to read again"
        yield _offer(AnytimeMirrorDescent, once, remark)
    remark = (
        "better only at optima of more coordinates than noise lets be told apart, by up to 2 times"
    )
    yield _offer(solvers.DPSGD, None, remark)


def _of_saddle(problem: Saddle, n: int, budget: Budget) -> Iterator[_Offer]:
    affine = problem.smoothness is not None and not any(problem.smoothness)
    if affine and problem.payoff_interval is not None and budget.delta > 0:
        with candidates():
            kind = type(solvers.solver_for_game(problem, n, budget))
        why = "a game whose payoffs at vertices are stated to lie in an interval"
        yield _offer(kind, None, why)
    against = None  # why `DPSGD` is not the first choice
    if problem.num_params > _SMALL_GAME:
        against = f"{problem.num_params} parameters, above {_SMALL_GAME}"
    try:
        jax.eval_shape(problem.project, problem.init)
    except NotImplementedError:
        against = "a polytope without a projection, which descent needs"
    said = against or f"{problem.num_params} parameters, up to {_SMALL_GAME}"
    descent = _offer(solvers.DPSGD, None, said)
    draws = _offer(SaddleMirrorDescent, None, said)
    yield from (draws, descent) if against else (descent, draws)


def _of_queries(problem: QueryRelease, n: int, budget: Budget) -> Iterator[_Offer]:
    with candidates():
        method, options, reason = choose(problem, n, budget)
    yield _Offer(method, functools.partial(METHODS[method], **options), None, reason)
    for other in METHODS:
        if other != method:
            yield _Offer(other, METHODS[other], None, _LESS)


_KINDS: dict[type, Callable[..., Iterator[_Offer]]] = {
    LinearModel: _of_linear_model,
    RateConstrained: _of_rates,
    Risk: _of_risk,
    SimplexRisk: _of_vertices,
    Saddle: _of_saddle,
    QueryRelease: _of_queries,
}
