"""Anytime mirror descent on sampled vertices: convex risks over polytopes, in one pass."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import (
    PyTree,
    check_fields,
    check_int,
    check_key,
    check_unstacked,
    static_field,
)
from dpjax.geometry import log_normalize, sample_vertices
from dpjax.privacy import Budget, Guarantee, check_budget
from dpjax.privacy._relations import relation_factor
from dpjax.solvers._summary import register_solver
from dpjax.solvers.vertices._anytime_plan import (
    output_draws,
    plan_anytime,
    refreshes_left,
    taper_tail,
)
from dpjax.solvers.vertices._constants import check_one_block, constants_of
from dpjax.solvers.vertices._plan import VertexPlan
from dpjax.solvers.vertices._replay import VertexSolver
from dpjax.solvers.vertices._steps import (
    add_scores,
    available_rho,
    check_vertex_fields,
    coordinates,
    draws_event,
    no_scores,
    range_sums,
    single_pass_sampler,
    step_weights,
)

_CHOICES = ("certified", "steps", "num_draws", "refresh")  # of plan_anytime


class AnytimeState(NamedTuple):
    """State of `AnytimeMirrorDescent`, over p coordinates and m vertices.

    Attributes:
      scores: Sum of gradients times step size, a pair of `[p]`, of `[m]` on a polytope; *secret*,
        and redacted by `dpjax.solve`, as the next.
      average: The sum of all iterates so far, as `(top, mass)` with `exp(top) * mass` a vertex's
        sum and `exp(top)` the largest of its terms, `[m]` each: nothing under- or overflows.
      indices: The vertices drawn last, `[K]` int32.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    scores: Any
    average: Any
    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class AnytimeMirrorDescent(VertexSolver):
    r"""Mirror descent with gradients at vertices drawn from the *average* of its iterates.

    With $x_t$ the softmax of the scores and one disjoint batch $B_t$ a step,

    $$ w_t = \frac1t \sum_{i \le t} x_i, \qquad
       u \leftarrow u - \tau \nabla \ell(\hat w; B_t) $$

    where $\hat w$ is the mean of K vertices drawn from $w_t$, anew at the times 1 to q and at the
    multiples of q. The result is a last such mean.

    Guarantee: the draws are the mechanism. A record moves the scores of all iterates after its
    batch by one vector of range at most $\eta = c\,\tau\,\omega / b_t$ (as in
    `SaddleMirrorDescent`). A draw from $w_t$ is a draw from an iterate chosen without looking at
    the data, then forgotten, so it is $\eta^2/8$-zCDP as well. The event counts K draws at every
    refresh after a record's batch, for the batch where this comes to most. What rounding of scores
    and averages may add is taken off the step size.

    | input | effect |
    | --- | --- |
    | empty batch | scores stay |
    | NaN or inf in a record's gradient | contributes nothing (unless `assume_bounded`) |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `TaperedPartition` or `DisjointPartition` (replace-one), or `IndependentPartition`;
        S steps, and the sizes to divide batch sums by (static).
      step_size: tau, of length 1 (data).
      grad_range: omega, of length 1, in units of a record's gradient (data).
      num_draws: K (static).
      refresh: q, steps between draws (static).
      output_draws: Vertices drawn for the result, once; None for K (static).
      assume_bounded: Skip the clipping: the caller answers for `grad_range` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: González, Guzmán and Paquette, "Mirror descent algorithms with nearly
    dimension-independent rates for differentially-private stochastic saddle-point problems", 2024;
    anytime online-to-batch conversion of Cutkosky 2019; the exponential mechanism of
    McSherry and Talwar 2007; Maurey's sampling (Pisier 1981).
    """

    sampler: Any = dataclasses.field(metadata={"static": True})
    step_size: Any
    grad_range: Any
    num_draws: int = static_field(default=1)
    refresh: int = static_field(default=1)
    output_draws: int | None = static_field(default=None)
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        check_vertex_fields(self)
        check_int("num_draws", self.num_draws, minimum=1)
        check_int("refresh", self.refresh, minimum=1)
        if self.output_draws is not None:
            check_int("output_draws", self.output_draws, minimum=1)

    @classmethod
    def plan(cls, problem: Any, num_records: int, budget: Budget, **choices: Any) -> VertexPlan:
        """Steps, draws, refreshes and step size from explicit bounds and public constants alone.

        Args:
          problem: `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: What must hold; the relation defaults to replace-one.
          **choices: `certified` (minimise the bound itself, rather than what is typical), and
            `steps`, `num_draws` or `refresh` where they are to be fixed.

        Returns:
          The plan, with its bound on the expected excess risk.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, `budget` no `Budget`, or a choice unknown.

        Example:
          >>> import dpjax
          >>> ball = dpjax.geometry.L1Ball(100)
          >>> problem = dpjax.problems.SimplexRisk.linear(
          ...     lambda margin, y: 0.5 * (margin - y) ** 2, ball, grad_range=4.0, smoothness=1.0)
          >>> plan = AnytimeMirrorDescent.plan(problem, 100_000, dpjax.Budget(1.0, 1e-6))
          >>> plan.steps > 10
          True
        """
        check_fields(cls, choices, _CHOICES)
        return plan_anytime(
            constants_of(problem),
            num_records,
            available_rho(budget),
            relation_factor(check_budget(budget, num_records).relation_or("replace_one")),
            **choices,
        )

    @classmethod
    def for_budget(
        cls,
        problem: Any,
        num_records: int,
        budget: Budget,
        *,
        order: str = "random",
        assume_bounded: bool = False,
        **choices: Any,
    ) -> "AnytimeMirrorDescent":
        """The solver of `plan`.

        Args:
          problem: `SimplexRisk`.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          order: Of the records under replace-one: `"random"`, or `"given"` to read them in turn.
          assume_bounded: Skip the clipping.
          **choices: As in `plan`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, `budget` no `Budget`, or a choice unknown.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.SimplexRisk(
          ...     loss=lambda w, rec: rec["c"] @ w, dim=20, grad_range=1.0)
          >>> solver = AnytimeMirrorDescent.for_budget(problem, 1000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        check_fields(cls, choices, {"order", "assume_bounded", *_CHOICES})
        check_one_block(problem)
        plan = cls.plan(problem, num_records, budget, **choices)
        last = output_draws(plan.steps, plan.num_draws, plan.refresh)
        tail = taper_tail(last, plan.num_draws, plan.refresh)
        return cls(
            single_pass_sampler(num_records, plan.steps, budget, order, tail),
            plan.step_size,
            tuple(problem.ranges),
            plan.num_draws,
            plan.refresh,
            last,
            assume_bounded,
            check_budget(budget).relation_or("replace_one").name.lower(),
        )

    def init(self, problem: Any, *, key: jax.Array) -> AnytimeState:
        """The state before the first step; the key (*secret*) is for the draws."""
        (domain,) = problem.domains
        m = domain.num_vertices
        return AnytimeState(
            no_scores(domain),
            (jnp.full(m, -jnp.inf), jnp.zeros(m)),
            jnp.zeros(self.num_draws, jnp.int32),
            jnp.zeros((), jnp.int32),
            check_key("key", key),
        )

    def prepare(self, problem: Any, state: AnytimeState) -> AnytimeState:
        """Adds the present iterate to the average."""
        iterate = log_normalize(coordinates(problem.domains[0]).logits(*state.scores))
        top, mass = state.average
        smaller = jnp.exp(-jnp.abs(iterate - top))  # of the two, relative to the larger
        mass = jnp.where(iterate > top, mass * smaller + 1, mass + smaller)
        return state._replace(average=(jnp.maximum(top, iterate), mass))

    def logits(self, problem: Any, state: AnytimeState) -> tuple[jax.Array]:
        """What a draw now is the softmax of, `[m]`, up to a shift. **Not private**."""
        del problem
        top, mass = state.average
        return (top + jnp.log(mass),)

    def draws_now(self, state: AnytimeState) -> jax.Array:
        """Whether this step draws anew."""
        time = state.count + 1
        return (time <= self.refresh) | (time % self.refresh == 0)

    def sample(self, problem: Any, state: AnytimeState) -> tuple[jax.Array]:
        """Vertices `[K]` from the average if it is time, else those drawn last."""
        key = jax.random.fold_in(state.key, state.count)

        def draw(state: AnytimeState) -> jax.Array:
            return sample_vertices(key, self.logits(problem, state)[0], self.num_draws)

        if self.refresh == 1:
            return (draw(state),)
        return (jax.lax.cond(self.draws_now(state), draw, lambda state: state.indices, state),)

    def accept(self, problem: Any, indices: tuple[jax.Array], state: AnytimeState) -> AnytimeState:
        """Keeps the vertices to take gradients at."""
        del problem
        return state._replace(indices=indices[0])

    def advance(
        self, problem: Any, batch: PyTree, mask: jax.Array, state: AnytimeState
    ) -> AnytimeState:
        """The part of a step that sees data: new scores, given what was drawn."""
        gradients = problem.gradients_at_vertices((state.indices,), batch)
        # each iterate rounds the average's logits once more
        rounded = 100 + 2 * (self.sampler.steps + 1)
        weights = step_weights(self, state.count, state.scores.high.dtype, logit=rounded)
        (term,) = range_sums(
            problem.domains, gradients, mask, self.grad_range, weights, self.assume_bounded
        )
        scores = add_scores(problem.domains[0], state.scores, term, 1)
        return state._replace(scores=scores, count=state.count + 1)

    def finalize(self, problem: Any, state: AnytimeState) -> PyTree:
        """The mean of vertices drawn from the average of all iterates."""
        (logits,) = self.logits(problem, self.prepare(problem, state))
        key = jax.random.fold_in(state.key, state.count)
        indices = sample_vertices(key, logits, self._last_draws)
        return problem.assemble((problem.domains[0].average(indices),))

    def redact(self, state: AnytimeState) -> AnytimeState:
        """The state without what no draw covers."""
        return state._replace(scores=None, average=None)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "step_size", "grad_range")
        left = refreshes_left(self.sampler.steps, self.refresh)
        return Guarantee(
            draws_event(self, self.num_draws * (left - 1) + self._last_draws),
            self.relation,
            self.sampler.failure_probability(),
        )

    @property
    def _last_draws(self) -> int:
        return self.num_draws if self.output_draws is None else self.output_draws
