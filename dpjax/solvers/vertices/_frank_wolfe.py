"""Frank-Wolfe with vertices drawn by the exponential mechanism: convex risks over polytopes."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import (
    PyTree,
    check_fields,
    check_finite,
    check_int,
    check_key,
    check_type,
    check_unstacked,
    static_field,
)
from dpjax.core._pairs import Pair, add_pairs
from dpjax.privacy import Budget, Guarantee, PureZCDpEvent, check_budget, zcdp_budget
from dpjax.privacy._budget import RelationLike, relation_factor
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._parts import part_size
from dpjax.solvers._summary import register_solver
from dpjax.solvers._vertex_problem import VertexProblem, one_block
from dpjax.solvers.vertices import _steps as vertex_steps
from dpjax.solvers.vertices._steps import VertexInfo
from dpjax.transforms.clipping._microbatch import in_whole_parts

# what runs show of the bound's curvature term, relative to what they show of its other term
_TYPICAL_CURVATURE = 0.09


class FrankWolfeState(NamedTuple):
    """State of `FrankWolfe`; all of it but the key is covered by the guarantee.

    Attributes:
      params: The iterate, `[p]`.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    params: jax.Array
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class FrankWolfePlan(NamedTuple):
    """What a plan chose, from public constants alone.

    Attributes:
      steps: T, the number of draws.
      sharpness: lambda, in units of 1 / score.
      bound: Bound on the expected excess of the *empirical* risk, if no gradient is clipped.
    """

    steps: int
    sharpness: float
    bound: float


@register_solver
@dataclasses.dataclass(frozen=True)
class FrankWolfe:
    r"""Frank-Wolfe on all records, towards a vertex drawn from the softmax of the scores.

    With V the vertices of the domain, one a row, and n the *public* `num_records`, for t from 0,

    $$ g_t = \frac1n \sum_i \mathrm{clip}_\omega(\nabla \ell_i(\theta_t)), \qquad
       j_t \sim \mathrm{softmax}(-\lambda V g_t), \qquad
       \theta_{t+1} = \frac{t}{t+2}\,\theta_t + \frac{2}{t+2}\,v_{j_t} $$

    so that the first draw replaces the start. Works with `dpjax.problems.SimplexRisk`. Each step
    reads all records, `microbatch_size` at a time, and no array of the size of the data is made.

    Guarantee: the draws are the mechanism, and everything returned follows from them. A record
    moves the logits of each draw by a vector of range at most $\eta = c\,\lambda\,\omega / n$,
    with omega `grad_range` (enforced by scaling each record's gradient) and c = 2 under
    replace-one, 1 under add-or-remove-one, where the number of records is secret and n a constant
    near it. So each draw is $\eta^2/8$-zCDP whatever was drawn before, and the event is T of them:
    `SelfComposedDpEvent(ZCDpEvent(eta**2 / 8), T)`. Scores are sums of centred gradients, exact in
    twice the precision; what rounding remains is taken off lambda.

    | input | effect |
    | --- | --- |
    | no record at all | a uniform draw |
    | NaN or inf in a record's gradient | contributes nothing (unless `assume_bounded`) |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(T)` (static).
      sharpness: lambda, scalar, in units of 1 / score (data).
      grad_range: omega, scalar, in units of a record's gradient (data).
      num_records: n, scalar, by which the sum is divided (data); the number of records, or near it.
      microbatch_size: Records whose gradients, or features as floats, coexist; None for 16, or as
        many more as make 2^20 numbers (static).
      assume_bounded: Skip the clipping: the caller answers for `grad_range` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Frank and Wolfe 1956; Jaggi 2013 (rates with inexact vertices); Talwar, Thakurta and
    Zhang 2015 (private, on the l1 ball); the exponential mechanism of McSherry and Talwar 2007.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    sharpness: float | jax.Array
    grad_range: float | jax.Array
    num_records: float | jax.Array
    microbatch_size: int | None = static_field(default=None)
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="add_or_remove_one")

    def __post_init__(self) -> None:
        what = "FullBatch, since the event is that of draws which all see every record"
        check_type("sampler", self.sampler, FullBatch, what)
        requests.check_values(
            self,
            positive=("sharpness", "grad_range", "num_records"),
            counts=("microbatch_size",),
            relation=requests.RELATIONS,
        )

    @classmethod
    def plan(
        cls,
        problem: VertexProblem,
        num_records: int,
        budget: Budget,
        *,
        certified: bool = False,
        steps: int | None = None,
    ) -> FrankWolfePlan:
        r"""Number of steps and sharpness from an explicit bound and public constants alone.

        With $\lambda_T = n \sqrt{8 \rho / T} / (c\,\omega)$, m vertices and smoothness L,

        $$ E\,F(\theta_T) - \min F \le \frac{8 L}{T + 2} + \frac{\log m}{\lambda_T} $$

        by the curvature 4 L of F over the weights. Runs are far below it, and more so in the first
        term. So by default T minimises $0.09 \cdot 8 L / T + \log m / \lambda_T$:

        $$ T = \Bigl(\frac{1.44\,L\,n \sqrt{8\rho}}{c\,\omega \log m}\Bigr)^{2/3} $$

        The 0.09 was tuned, once, on synthetic instances of known optimum: sparse and dense least
        squares and logistic regression, on l1 balls and simplices that bind or do not, with 100 to
        1000 features, 3000 to 100000 records and epsilon 0.3 to 3. There the excess risk is 1.2
        times that of the best T in the median and at most 2 in nearly all, with larger T better
        where the constraint binds. State `smoothness`: without it, it counts as half of the range
        of gradients, most often too large, and so is T.

        Args:
          problem: `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: What must hold; the relation defaults to add-or-remove-one.
          certified: Whether T minimises the bound itself.
          steps: T, if it is to be fixed.

        Returns:
          The plan, with its bound.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` or `steps` is not an integer, `problem` is none over
            vertices, or `budget` no `Budget`.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.SimplexRisk.linear(
          ...     lambda margin, y: 0.5 * (margin - y) ** 2, dpjax.geometry.L1Ball(100),
          ...     grad_range=4.0, smoothness=1.0)
          >>> FrankWolfe.plan(problem, 10_000, dpjax.Budget(1.0, 1e-6)).steps
          45
        """
        relation = check_budget(budget, num_records).relation_or("add_or_remove_one")
        check_finite("epsilon", budget.epsilon)
        # a little less, since sums are rounded
        rho = (1 - 1e-6) * zcdp_budget(budget, relation=relation) if budget.delta > 0 else 0.0
        pure = (1 - 1e-12) * budget.epsilon
        return planned(problem, num_records, relation, rho, pure, certified=certified, steps=steps)

    @classmethod
    def for_budget(
        cls,
        problem: VertexProblem,
        num_records: int,
        budget: Budget,
        *,
        certified: bool = False,
        steps: int | None = None,
        **overrides: Any,
    ) -> "FrankWolfe":
        """The solver of `plan`.

        Args:
          problem: `SimplexRisk`.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to add-or-remove-one,
            which allows twice the sharpness of replace-one.
          certified: As in `plan`.
          steps: As in `plan`.
          **overrides: `microbatch_size`, `assume_bounded`, or `sharpness` at the caller's own risk
            of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, `budget` no `Budget`, or an override no
            field.

        Example:
          >>> import dpjax, jax, jax.numpy as jnp
          >>> problem = dpjax.problems.SimplexRisk(
          ...     loss=lambda w, rec: jnp.sum((w - rec["x"]) ** 2), dim=3, grad_range=4.0)
          >>> solver = dpjax.solvers.FrankWolfe.for_budget(problem, 500, dpjax.Budget(1.0, 1e-5))
          >>> data = {"x": jnp.tile(jnp.array([[0.5, 0.5, 0.0]]), (500, 1))}
          >>> solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
          >>> solution.guarantee.epsilon(1e-5) <= 1.0
          True
          >>> solution.info.indices[0].shape == (solver.sampler.steps, 1)
          True
        """
        check_fields(cls, overrides)
        plan = cls.plan(problem, num_records, budget, certified=certified, steps=steps)
        fields = {
            "sharpness": plan.sharpness,
            "grad_range": problem.ranges[0],
            "num_records": num_records,
            "relation": check_budget(budget).relation_or("add_or_remove_one").name.lower(),
        }
        solver = cls(FullBatch(plan.steps), **(fields | overrides))
        requests.within_budget(solver, budget, overrides, "sharpness")
        return requests.checked_draws(solver, [solver.sharpness * solver.grad_range])

    expected_records = requests.records_in_full("num_records")

    def init(self, problem: VertexProblem, *, key: jax.Array) -> FrankWolfeState:
        """The state before the first step; the key (*secret*) is for the draws."""
        check_key("key", key)
        return FrankWolfeState(jnp.asarray(problem.init), jnp.zeros((), jnp.int32), key)

    def step(
        self, problem: VertexProblem, batch: PyTree, mask: jax.Array, state: FrankWolfeState
    ) -> tuple[FrankWolfeState, VertexInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        key = jax.random.fold_in(state.key, state.count)
        toward = self.direction(problem, batch, mask, state)
        index = vertex_steps.draw_vertices(key, problem.domains[0], toward, 1)
        return self.move(problem, index, state), VertexInfo((index,))

    def direction(
        self, problem: VertexProblem, batch: PyTree, mask: jax.Array, state: FrankWolfeState
    ) -> Pair:
        """What a draw is from the softmax of, over the vertices, as a pair of `[p]`.

        Of `[m]` on a polytope. **Not private**.
        """
        weight = self.sharpness / self.num_records
        moved = relation_factor(self.relation) * weight * self.grad_range
        weight = vertex_steps.shrunk(weight, moved, state.params.dtype)
        domain, bound = problem.domains[0], self.grad_range

        def part_sum(part: PyTree, here: jax.Array, _: object) -> Pair:
            leaf = problem.per_example_gradients(state.params, part)
            return vertex_steps.sum_in_coordinates(
                domain, leaf, here, bound, weight, self.assume_bounded
            )

        size = self.microbatch_size or part_size(domain.dim)
        total = in_whole_parts(part_sum, batch, mask, size, add_pairs)
        return vertex_steps.add_scores(domain, vertex_steps.no_scores(domain), total, 1)

    def move(
        self, problem: VertexProblem, index: jax.Array, state: FrankWolfeState
    ) -> FrankWolfeState:
        """The state after the vertex `index [1]` was drawn."""
        dtype = state.params.dtype
        share = 2 / (state.count.astype(dtype) + 2)
        vertex = problem.domains[0].average(index).astype(dtype)
        params = (1 - share) * state.params + share * vertex
        return FrankWolfeState(params, state.count + 1, state.key)

    def finalize(self, problem: VertexProblem, state: FrankWolfeState) -> PyTree:
        """The last iterate."""
        return problem.assemble((state.params,))

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "sharpness", "grad_range", "num_records")
        moved = relation_factor(self.relation) * float(self.grad_range) / float(self.num_records)
        eta = float(self.sharpness) * moved
        draw = PureZCDpEvent(eta**2 / 8, epsilon=eta)
        event = dpe.SelfComposedDpEvent(draw, self.sampler.steps)
        return Guarantee(event, self.relation, self.sampler.failure_probability())


def planned(
    problem: VertexProblem,
    num_records: int,
    relation: RelationLike,
    rho: float,
    pure: float = 0.0,
    *,
    certified: bool = False,
    steps: int | None = None,
) -> FrankWolfePlan:
    """The plan of draws that are rho-zCDP, or pure if that allows sharper ones; as in `plan`."""
    log_m, smooth = one_block(problem)
    # ranges of one draw, of which T have 1 / T of the pure epsilon or 1 / sqrt(T) of the other
    concentrated = math.sqrt(8 * rho)
    scale = num_records / (relation_factor(relation) * float(problem.ranges[0]))
    if steps is None:
        eta, power = (concentrated, 0.5) if concentrated else (pure, 1.0)
        steps = _default_steps(8 * smooth, log_m / (scale * eta), certified, power)
    check_int("steps", steps, minimum=1)
    sharpness = scale * max(pure / steps, concentrated / math.sqrt(steps))
    return FrankWolfePlan(steps, sharpness, 8 * smooth / (steps + 2) + log_m / sharpness)


def _default_steps(curvature: float, selection: float, certified: bool, power: float) -> int:
    """The T that makes `curvature / T + selection * T^power` small, of bound or typical size."""
    weight = 1.0 if certified else _TYPICAL_CURVATURE
    steps = max(1, round((weight * curvature / (power * selection)) ** (1 / (1 + power))))
    if not certified:
        return steps
    near = np.arange(1, 2 * steps + 2)
    return int(near[np.argmin(curvature / (near + 2) + selection * near**power)])
