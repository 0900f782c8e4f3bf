"""The shape of a one-pass method that releases vertices drawn from its scores, and its replay."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import (
    PyTree,
    check_choice,
    check_fields,
    check_key,
    check_positive,
    check_unstacked,
)
from dpjax.core._pairs import Pair
from dpjax.papers._tapered import TaperedPartition
from dpjax.papers._vertex_plan import BlockProblem, draft_sampler
from dpjax.privacy import Budget, Guarantee, PureZCDpEvent, check_budget
from dpjax.privacy._budget import relation_factor
from dpjax.sampling import DisjointPartition, IndependentPartition, poisson_capacity
from dpjax.solvers._request import RELATIONS, check_sampler, checked_draws
from dpjax.solvers.vertices._steps import VertexInfo, coordinates, shrunk, sum_in_coordinates

SinglePass = DisjointPartition | TaperedPartition | IndependentPartition
"""Samplers of disjoint batches of public sizes."""


class Replay(NamedTuple):
    """What every draw of a run was a softmax of, given what was drawn. **Not private**.

    Attributes:
      logits: For each block `[S + 1, m]`; the last row is that of the draws for the result.
      drawn: Whether there was a draw, `[S + 1]`.
    """

    logits: tuple[jax.Array, ...]
    drawn: jax.Array


class VertexSolver:
    """A step in four parts: `prepare`, `sample`, `accept` and, alone in seeing data, `advance`.

    Here are the parts for draws from the softmax of the scores; `draws_last` says whether there is
    a draw after the last step.
    """

    sampler: SinglePass
    step_size: PyTree
    grad_range: PyTree
    assume_bounded: bool
    relation: str
    draws_last = True
    plan: ClassVar[Callable[..., PyTree]]
    start: Callable[..., PyTree]
    sample: Callable[..., tuple[jax.Array, ...]]
    accept: Callable[..., PyTree]
    advance: Callable[..., PyTree]
    draws_now: Callable[[PyTree], jax.Array | bool]
    _exposure: Callable[[], tuple[np.ndarray, np.ndarray | float]]

    def __post_init__(self) -> None:
        for name in ("step_size", "grad_range"):
            value = getattr(self, name)
            if isinstance(value, int | float | jax.Array):
                object.__setattr__(self, name, (value,))
            check_positive(name, getattr(self, name))
        if not isinstance(self.sampler, SinglePass):
            names = ", ".join(kind.__name__ for kind in SinglePass.__args__)
            raise TypeError(
                f"sampler must be one of {names}, since scores remember every batch, "
                f"got {type(self.sampler).__name__}"
            )
        if self.sampler.participation.most > 1:
            raise ValueError(
                "sampler must have each record in one batch, since scores remember every batch, "
                f"got {self.sampler!r}"
            )
        check_choice("relation", self.relation, RELATIONS)
        check_sampler(self.sampler, self.relation)

    @classmethod
    def for_budget(
        cls,
        problem: BlockProblem,
        num_records: int,
        budget: Budget,
        *,
        order: str = "random",
        **choices: Any,
    ) -> Self:
        """The solver of `plan`.

        Args:
          problem: As in `plan`.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          order: Of the records under replace-one: `"random"`, or `"given"` to read them in turn.
          **choices: Those of `plan`, and most other fields; `step_size` and `grad_range` at the
            caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, `budget` no `Budget`, or a choice unknown.

        Example:
          >>> import dpjax
          >>> game = dpjax.problems.Saddle.matrix_game((5, 5))
          >>> for kind in (dpjax.solvers.SaddleMirrorDescent, dpjax.solvers.MultilevelSaddle):
          ...     solver = kind.for_budget(game, 10_000, dpjax.Budget(1.0, 1e-6))
          ...     print(solver.guarantee().epsilon(1e-6) <= 1.0)
          True
          True
        """
        fields = set(inspect.signature(cls).parameters)
        options = set(inspect.signature(cls.plan).parameters) - {"problem", "num_records", "budget"}
        planned_alone = {"sampler", "relation", "levels", "output_draws"}
        check_fields(cls, choices, ({"order"} | options | fields) - planned_alone)
        asked = {name: choices.pop(name) for name in options & set(choices)}
        plan = cls.plan(problem, num_records, budget, **asked)
        relation = check_budget(budget).relation_or("replace_one")
        sampler = draft_sampler(
            num_records, plan.steps, relation_factor(relation), order, cls._tail(plan)
        )
        if isinstance(sampler, IndependentPartition):
            capacity = poisson_capacity(
                num_records + 1,
                float(sampler.shares.max()),
                plan.steps,
                delta=budget.delta,
                epsilon=budget.epsilon,
            )
            sampler = dataclasses.replace(sampler, capacity=capacity)
        planned = {name: getattr(plan, name) for name in fields & set(plan._fields)}
        planned["grad_range"] = planned.get("grad_range") or tuple(problem.ranges)
        planned["relation"] = relation.name.lower()
        make: Callable[..., Self] = cls
        solver = make(sampler, **planned | choices)
        sizes = zip(solver.step_size, solver.grad_range, strict=True)
        return checked_draws(solver, [solver._updates * tau * omega for tau, omega in sizes])

    def step(
        self, problem: BlockProblem, batch: PyTree, mask: jax.Array, state: PyTree
    ) -> tuple[PyTree, VertexInfo]:
        """Draws vertices, then moves the scores by the records of `batch` where `mask [B]`."""
        state = self.prepare(problem, state)
        indices = self.sample(problem, state)
        state = self.accept(problem, indices, state)
        return self.advance(problem, batch, mask, state), VertexInfo(indices)

    def init(self, problem: BlockProblem, *, key: jax.Array) -> PyTree:
        """The state before the first batch; the key (*secret*) is for the draws."""
        return self.start(problem, check_key("key", key))

    def prepare(self, problem: BlockProblem, state: PyTree) -> PyTree:
        """Nothing to do before a draw."""
        del problem
        return state

    def logits(self, problem: BlockProblem, state: PyTree) -> tuple[jax.Array, ...]:
        """What a draw now is the softmax of, `[m]` a block, up to a shift. **Not private**."""
        pairs = zip(problem.domains, state.scores, strict=True)
        return tuple(coordinates(domain).logits(*score) for domain, score in pairs)

    def redact(self, state: PyTree) -> PyTree:
        """The state without the scores, which no draw covers."""
        return state._replace(scores=None)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields.

        As the record sees it whose batch lets it see most. A record of batch t enters the
        `draws[t]` that follow it, as often as a block's vertices are drawn at once, each of bounded
        range eta = c tau omega weight_t / size_t, which is eta^2 / 8 zero-concentrated and eta-DP.
        The batch of the largest sum of eta may be another one: each draw is charged its share of
        that.
        """
        check_unstacked(self, "step_size", "grad_range")
        draws, weights = self._exposure()
        sizes = np.asarray(self.sampler.sizes, float) / weights
        worst = int(np.argmax(draws / np.square(sizes)))
        count = int(draws[worst])
        pure = np.max(draws / sizes) / count
        moved = [
            relation_factor(self.relation) * float(step) * float(bound)
            for step, bound in zip(self.step_size, self.grad_range, strict=True)
        ]
        each = [
            PureZCDpEvent((move / sizes[worst]) ** 2 / 8, epsilon=move * pure) for move in moved
        ]
        return Guarantee(
            dpe.ComposedDpEvent(
                [
                    dpe.SelfComposedDpEvent(draw, count * repeats)
                    for draw, repeats in zip(each, self._repeats, strict=True)
                ]
            ),
            self.relation,
            self.sampler.failure_probability(),
        )

    @property
    def _repeats(self) -> tuple[int, ...]:
        """Vertices of each block drawn together, beyond what `_exposure` counts."""
        return (1,) * len(self.step_size)

    @property
    def _updates(self) -> int:
        """How many gradients, or estimates of one, the scores of the last draw are made of."""
        return self.sampler.steps

    @staticmethod
    def _tail(plan: PyTree) -> int:
        """Releases after the last batch, as `TaperedPartition` counts them."""
        del plan
        return 0

    def _step_weights(
        self,
        count: jax.Array,
        dtype: DTypeLike,
        *,
        gain: ArrayLike = 1.0,
        logit: float = 0.0,
        total: float = 0.0,
    ) -> tuple[jax.Array, ...]:
        """What step `count` multiplies each block's sum of gradients by, but for the sign.

        A record may move the scores by `gain` times the range of its gradient; `logit` and `total`
        are as for `shrunk`.
        """
        share = 1 / jnp.asarray(self.sampler.sizes, dtype)[count]
        factor = relation_factor(self.relation) * gain
        return tuple(
            shrunk(size * share, factor * size * share * bound, dtype, logit, total)
            for size, bound in zip(self.step_size, self.grad_range, strict=True)
        )

    def _sums(
        self,
        problem: BlockProblem,
        gradients: tuple[PyTree, ...],
        mask: jax.Array,
        weights: tuple[ArrayLike, ...],
    ) -> tuple[Pair, ...]:
        """Each block's `sum_in_coordinates`."""
        blocks = zip(problem.domains, gradients, self.grad_range, weights, strict=True)
        return tuple(
            sum_in_coordinates(domain, leaf, mask, bound, weight, self.assume_bounded)
            for domain, leaf, bound, weight in blocks
        )

    def replay(self, problem: BlockProblem, data: PyTree, info: VertexInfo, xs: PyTree) -> Replay:
        """The scores of a run on `data` if it drew what `info` says. **Not private**.

        With two neighbours in turn it shows how far one record moves the logits of each draw, which
        is what the guarantee bounds.

        Args:
          problem: What was solved.
          data: Tree of leaves `[n, ...]`, of as many records as the run had.
          info: Of a solution.
          xs: The batches: `sampler.plan(...)`.

        Returns:
          The logits of every draw.

        Example:
          >>> import dpjax, jax, jax.numpy as jnp
          >>> game = dpjax.problems.Saddle.matrix_game((3, 3))
          >>> sampler = dpjax.sampling.TaperedPartition(4, 20, order="given")
          >>> solver = dpjax.solvers.SaddleMirrorDescent(sampler, (0.1, 0.1), (2.0, 2.0))
          >>> data = {"A": jnp.ones((20, 3, 3))}
          >>> info = dpjax.solve(solver, game, data, key=jax.random.key(0)).info
          >>> again = solver.replay(game, data, info, sampler.plan(jax.random.key(1), 20))
          >>> again.logits[0].shape, bool(again.drawn.all())
          ((5, 3), True)
        """
        data = jax.tree.map(jnp.asarray, data)
        num_records = jax.tree.leaves(data)[0].shape[0]

        def body(state: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            x, indices = inputs
            rows, mask = self.sampler.batch(x, num_records)
            batch = jax.tree.map(lambda a: a[rows], data)
            state = self.prepare(problem, state)
            seen = self.logits(problem, state), jnp.asarray(self.draws_now(state))
            state = self.accept(problem, indices, state)
            return self.advance(problem, batch, mask, state), seen

        start = self.start(problem, None)  # without a key: the draws are given
        state, (logits, drawn) = jax.lax.scan(body, start, (xs, info.indices))
        last = self.logits(problem, self.prepare(problem, state))
        joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), logits, last)
        return Replay(joined, jnp.append(drawn, self.draws_last))
