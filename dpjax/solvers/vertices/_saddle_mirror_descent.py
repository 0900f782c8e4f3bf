"""Entropic mirror descent on sampled vertices: saddle points and convex risks, in one pass."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import (
    PyTree,
    check_choice,
    check_fields,
    check_int,
    check_key,
    check_unstacked,
    static_field,
)
from dpjax.privacy import Budget, Guarantee, check_budget
from dpjax.privacy._relations import relation_factor
from dpjax.solvers._summary import register_solver
from dpjax.solvers._swamped import checked_draws
from dpjax.solvers.vertices._constants import constants_of
from dpjax.solvers.vertices._plan import VertexPlan, plan_mirror_descent
from dpjax.solvers.vertices._replay import VertexSolver
from dpjax.solvers.vertices._steps import (
    add_scores,
    available_rho,
    check_vertex_fields,
    draw_vertices,
    draws_event,
    no_scores,
    range_sums,
    single_pass_sampler,
    step_weights,
)

OUTPUTS = ("played", "fresh")


class MirrorState(NamedTuple):
    """State of `SaddleMirrorDescent`; one entry a block in each tuple.

    Attributes:
      scores: Sums of gradients times step size, pairs of `[p]`, of `[m]` on a polytope. They follow
        from the data: *secret*, and redacted by `dpjax.solve`.
      counts: How often each vertex was drawn for the output, `[m]` int32.
      played: The vertices drawn last, `[K]` int32.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    scores: Any
    counts: tuple[jax.Array, ...]
    played: tuple[jax.Array, ...]
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class SaddleMirrorDescent(VertexSolver):
    r"""Mirror descent-ascent in which vertices drawn from the iterates are all that is released.

    With one disjoint batch $B_t$ a step, the gradient averaged over it, and $\hat x_t, \hat y_t$
    the means of K vertices drawn from the softmax of the scores u and v,

    $$ u \leftarrow u - \tau_x \nabla_x f(\hat x_t, \hat y_t; B_t), \qquad
       v \leftarrow v + \tau_y \nabla_y f(\hat x_t, \hat y_t; B_t) $$

    The result is the mean of the points drawn. Works with `dpjax.problems.Saddle`, and with
    `SimplexRisk`, which has one block: then it is private stochastic convex optimisation, and the
    result one point.

    Guarantee: the draws are the mechanism. A record moves the scores of one block, in all draws
    after its batch, by one vector of range at most $\eta = c\,\tau\,\omega / b_t$, with omega
    `grad_range` (enforced by scaling each record's gradient), $b_t$ the public size of its batch
    and c = 2 under replace-one, 1 under add-or-remove-one (each record picks its batch on its own).
    So each draw is $\eta^2/8$-zCDP, and a record of batch t meets $(S - t) K$ of them a block, t
    from 0 ($K + 1$ for K if fresh): the draws after the last step included, those before its own
    left out. The event is that of the batch where this comes to most. Scores are sums of centred
    gradients, exact in twice the precision; what rounding remains is taken off the step sizes.

    | input | effect |
    | --- | --- |
    | empty batch | scores stay |
    | NaN or inf in a record's gradient | contributes nothing (unless `assume_bounded`) |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `TaperedPartition` or `DisjointPartition` (replace-one), or `IndependentPartition`;
        S steps, and the sizes to divide batch sums by (static).
      step_size: tau of each block (data).
      grad_range: omega of each block, in units of a record's gradient (data).
      num_draws: K, vertices that stand for an iterate (static).
      output: `"played"`, the mean of the points at which gradients were taken; `"fresh"`, of one
        more draw a step, which those gradients do not depend on (static).
      assume_bounded: Skip the clipping: the caller answers for `grad_range` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: González, Guzmán and Paquette, "Mirror descent algorithms with nearly
    dimension-independent rates for differentially-private stochastic saddle-point problems", 2024;
    mirror descent for saddle points of Nemirovski, Juditsky, Lan and Shapiro 2009; the
    exponential mechanism of McSherry and Talwar 2007; Maurey's sampling (Pisier 1981).
    """

    sampler: Any = dataclasses.field(metadata={"static": True})
    step_size: Any
    grad_range: Any
    num_draws: int = static_field(default=1)
    output: str = static_field(default="played")
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        check_vertex_fields(self)
        check_int("num_draws", self.num_draws, minimum=1)
        check_choice("output", self.output, OUTPUTS)

    @classmethod
    def plan(
        cls,
        problem: Any,
        num_records: int,
        budget: Budget,
        *,
        output: str | None = None,
        certified: bool = False,
        steps: int | None = None,
        num_draws: int | None = None,
    ) -> VertexPlan:
        """Steps, draws and step sizes from explicit bounds and public constants alone.

        Args:
          problem: `Saddle` or `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: What must hold; the relation defaults to replace-one.
          output: `"played"`, `"fresh"`, or None for the better bound.
          certified: Whether to minimise the bound on the expected error itself; by default what is
            typical is minimised, the bound without its worst case over comparators.
          steps: Number of steps, if it is to be fixed.
          num_draws: Number of draws, if it is to be fixed.

        Returns:
          The plan, with its bound on the expected duality gap or excess risk.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, or `budget` no `Budget`.

        Example:
          >>> import dpjax
          >>> game = dpjax.problems.Saddle.matrix_game((1000, 1000))
          >>> plan = SaddleMirrorDescent.plan(game, 1_000_000, dpjax.Budget(1.0, 1e-8))
          >>> plan.num_draws, round(plan.bound, 2)
          (1, 0.11)
        """
        return plan_mirror_descent(
            constants_of(problem),
            num_records,
            available_rho(budget),
            relation_factor(check_budget(budget, num_records).relation_or("replace_one")),
            output,
            certified=certified,
            steps=steps,
            num_draws=num_draws,
        )

    @classmethod
    def for_budget(
        cls,
        problem: Any,
        num_records: int,
        budget: Budget,
        *,
        output: str | None = None,
        certified: bool = False,
        steps: int | None = None,
        num_draws: int | None = None,
        order: str = "random",
        **overrides: Any,
    ) -> "SaddleMirrorDescent":
        """The solver of `plan`.

        Args:
          problem: `Saddle` or `SimplexRisk`.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          output: As in `plan`.
          certified: As in `plan`.
          steps: As in `plan`.
          num_draws: As in `plan`.
          order: Of the records under replace-one: `"random"`, or `"given"` to read them in turn.
          **overrides: `assume_bounded`, or `step_size` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, `budget` no `Budget`, or an override no
            field.

        Example:
          >>> import dpjax
          >>> game = dpjax.problems.Saddle.matrix_game((5, 5))
          >>> solver = SaddleMirrorDescent.for_budget(game, 1000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        check_fields(cls, overrides)
        plan = cls.plan(
            problem,
            num_records,
            budget,
            output=output,
            certified=certified,
            steps=steps,
            num_draws=num_draws,
        )
        fields = {
            "step_size": plan.step_size,
            "grad_range": tuple(problem.ranges),
            "num_draws": plan.num_draws,
            "output": plan.output,
            "relation": check_budget(budget).relation_or("replace_one").name.lower(),
        }
        sampler = single_pass_sampler(num_records, plan.steps, budget, order)
        solver = cls(sampler, **(fields | overrides))
        sizes = zip(solver.step_size, solver.grad_range, strict=True)
        return checked_draws(solver, [plan.steps * tau * omega for tau, omega in sizes])

    def init(self, problem: Any, *, key: jax.Array) -> MirrorState:
        """The state before the first step; the key (*secret*) is for the draws."""
        return MirrorState(
            tuple(map(no_scores, problem.domains)),
            tuple(jnp.zeros(d.num_vertices, jnp.int32) for d in problem.domains),
            tuple(jnp.zeros(self.num_draws, jnp.int32) for _ in problem.domains),
            jnp.zeros((), jnp.int32),
            check_key("key", key),
        )

    def draws_now(self, state: MirrorState) -> bool:
        """Every step draws."""
        del state
        return True

    def sample(self, problem: Any, state: MirrorState) -> tuple[jax.Array, ...]:
        """Vertices of each block, `[K]`, or `[K + 1]` with a fresh one at the end."""
        now = jax.random.fold_in(state.key, state.count)
        return tuple(
            draw_vertices(jax.random.fold_in(now, b), domain, score, self._draws)
            for b, (domain, score) in enumerate(zip(problem.domains, state.scores, strict=True))
        )

    def accept(
        self, problem: Any, indices: tuple[jax.Array, ...], state: MirrorState
    ) -> MirrorState:
        """Counts the vertices that make up the output, and keeps those to take gradients at."""
        del problem
        k = self.num_draws
        counts = tuple(
            count.at[drawn[k:] if self.output == "fresh" else drawn].add(1)
            for count, drawn in zip(state.counts, indices, strict=True)
        )
        return state._replace(counts=counts, played=tuple(drawn[:k] for drawn in indices))

    def advance(
        self, problem: Any, batch: PyTree, mask: jax.Array, state: MirrorState
    ) -> MirrorState:
        """The part of a step that sees data: new scores, given what was drawn."""
        gradients = problem.gradients_at_vertices(state.played, batch)
        weights = step_weights(self, state.count, state.scores[0].high.dtype)
        terms = range_sums(
            problem.domains, gradients, mask, self.grad_range, weights, self.assume_bounded
        )
        scores = tuple(map(add_scores, problem.domains, state.scores, terms, problem.signs))
        return state._replace(scores=scores, count=state.count + 1)

    def finalize(self, problem: Any, state: MirrorState) -> PyTree:
        """The mean of the points drawn in every step, and once more after the last."""
        counts = self.accept(problem, self.sample(problem, state), state).counts
        drawn = (state.count + 1) * (self.num_draws if self.output == "played" else 1)
        return problem.assemble(
            tuple(
                domain.point(count.astype(float) / drawn)
                for domain, count in zip(problem.domains, counts, strict=True)
            )
        )

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "step_size", "grad_range")
        return Guarantee(
            draws_event(self, self._draws * np.arange(self.sampler.steps, 0, -1)),
            self.relation,
            self.sampler.failure_probability(),
        )

    @property
    def _draws(self) -> int:
        return self.num_draws + (self.output == "fresh")
