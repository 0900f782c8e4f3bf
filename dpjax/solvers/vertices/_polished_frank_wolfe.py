"""Frank-Wolfe, then noisy descent on the coordinates that it found: l1 balls and simplices."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    check_fields,
    check_finite,
    check_key,
    check_nonnegative,
    check_type,
    check_unstacked,
    derived,
    static_field,
)
from dpjax.core._checks import known_numbers
from dpjax.geometry import L1Ball, Simplex
from dpjax.privacy import Budget, Guarantee, zcdp_budget
from dpjax.privacy._budget import relation_factor
from dpjax.sampling import FullBatch
from dpjax.solvers._parts import part_size
from dpjax.solvers._request import checked_draws, records_in_full, requested
from dpjax.solvers._summary import register_solver
from dpjax.solvers._vertex_problem import VertexProblem, one_block
from dpjax.solvers.descent._dpsgd import DPSGD, SGD, DPSGDState
from dpjax.solvers.vertices._frank_wolfe import FrankWolfe, FrankWolfeState, planned
from dpjax.transforms import OuterProduct, PackedSigns, per_example_norm
from dpjax.transforms.clipping._microbatch import in_whole_parts
from dpjax.transforms.noise import _noisy_counts as counting

_BINS = 12  # of gradient norms, each narrower by sqrt(2): clip norms to 1 / 45 of the bound
_CUT = 0.05  # share of the records to be clipped, at most
_ROUNDS, _STEPS = 2, 64
_DRAWS, _HISTOGRAMS = 0.4, 0.06  # shares of rho
_RATE = 0.1  # over the smoothness along a coordinate
_MOMENTUM = optax.sgd(1.0, momentum=0.9)  # is stable where twenty coordinates move as one
_LEAST_RATE = 0.1  # over the largest
_REACH = 0.1  # times 1 / (1 - momentum)
_DENSE = 0.1


class PolishedFrankWolfeState(NamedTuple):
    """State of `PolishedFrankWolfe`; all of it but the keys is covered by the guarantee.

    Attributes:
      draws: State of the draws.
      descent: State of the round of descent that is under way.
      support: Coordinates that descent moves, `[p]` bool.
      clip_norm: Of the round, `[]`.
      count: Steps so far, `[]` int32 (*public*).
      key: Of the histograms and rounds, `[]` (*secret*).
    """

    draws: FrankWolfeState
    descent: DPSGDState
    support: jax.Array
    clip_norm: jax.Array
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class PolishedFrankWolfeInfo(NamedTuple):
    """Released values of a step.

    Attributes:
      drawn: The vertex drawn, `[]` int32; -1 after the draws.
      gradient_norm: l2 norm of the noisy mean gradient, `[]`; 0 in other steps.
      clip_norm: Of the round, `[]`; 0 before the first.
      support: Number of coordinates that descent moves, `[]` int32.
    """

    drawn: jax.Array
    gradient_norm: jax.Array
    clip_norm: jax.Array
    support: jax.Array


class OnSupport(NamedTuple):
    """A problem on the points of few coordinates, as `DPSGD` takes it.

    Attributes:
      problem: Over an l1 ball or a simplex.
      support: The coordinates, `[p]` bool.
      init: Where descent starts, `[p]`.
    """

    problem: VertexProblem
    support: jax.Array
    init: jax.Array

    @property
    def num_params(self) -> int:
        """Dimension p."""
        return self.support.shape[0]

    def per_example_gradients(self, params: jax.Array, batch: PyTree) -> PyTree:
        """Gradients along the support, of entries at most the bound if none exceeds its range."""
        leaf = self.problem.per_example_gradients(params, batch)
        if not isinstance(leaf, OuterProduct):
            return self._along(leaf)
        left = leaf.left.unpack() if isinstance(leaf.left, PackedSigns) else leaf.left
        return leaf._replace(left=self._along(left))

    def _along(self, rows: jax.Array) -> jax.Array:
        rows = rows.astype(jnp.promote_types(rows.dtype, self.init.dtype))
        if isinstance(self.problem.domains[0], Simplex):
            # gradients count up to a constant there
            ends = jnp.max(rows, axis=1, keepdims=True) + jnp.min(rows, axis=1, keepdims=True)
            rows -= ends / 2
        return jnp.where(self.support[None], rows, 0)

    def project(self, params: jax.Array) -> jax.Array:
        """The nearest point of the face."""
        domain = self.problem.domains[0]
        # on a simplex, what is lower than the largest by more than 1 becomes 0
        outside = jnp.max(params) - 2 if isinstance(domain, Simplex) else 0.0
        return jnp.asarray(domain.project(jnp.where(self.support, params, outside)))


@register_solver
@dataclasses.dataclass(frozen=True)
class PolishedFrankWolfe:
    r"""Frank-Wolfe, then two rounds of noisy descent on few coordinates.

    Draws of vertices find a sparse point at little noise, but improve it slowly; noisy gradients
    improve it fast, and their noise grows with the number of coordinates. So `draws` come first.
    Then each of two rounds

    1. takes the k largest coordinates of the point w that was reached, $k = \lceil 2 \|w\|_1^2 /
       \|w\|_2^2 \rceil + 2$ (all p in the first round if `dense`);
    2. clips at a norm that a noisy histogram of the norms of records' gradients shows to cut at
       most a twentieth of them, on a grid of 12 from $B \sqrt k$ downward by $\sqrt 2$ each, B the
       largest entry that `grad_range` allows;
    3. descends from w in these coordinates by `descent`, at its learning rate or, where noise is
       large, a smaller one, and projects.

    Works with `dpjax.problems.SimplexRisk` over `L1Ball` or `Simplex`.

    Guarantee: everything is a function of four kinds of release, and composed: the draws, each of
    the event of `FrankWolfe`; two histograms, of which a record moves one count by 1 under
    add-or-remove-one (two under replace-one), with rounded Gaussian noise, whose sampler's distance
    is declared as failure probability; and `descent` twice, whose noise is its multiplier of the
    clip norm, whatever that is. Supports, clip norms and rates are post-processing of earlier
    releases.

    | input | effect |
    | --- | --- |
    | no record at all | uniform draws, then descent on noise |
    | NaN or inf in a record's gradient | contributes nothing |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      draws: Of a sparse point (its own fields).
      descent: A round, of all records each step; its clip norm bounds that of every round.
      histogram_noise: Scalar standard deviation of a count's noise (data).
      dense: Whether the first round moves all coordinates (static).
      reach: A round's learning rate is that of `descent`, or less: so small that noise alone,
        without momentum, moves by at most `reach` times $R / \sqrt k$, R the radius, but never
        below a tenth; scalar, at least 0, inf for no bound (data).

    Raises:
      ValueError: If a value is outside its bound, or relations differ.
      TypeError: If `draws`, `descent` or its sampler is of another kind.

    Source: Frank-Wolfe after Talwar, Thakurta and Zhang 2015; clip norms from quantiles as in
    Andrew, Thakkar, McMahan and Ramaswamy 2021; the combination is ours.
    """

    draws: FrankWolfe
    descent: DPSGD
    histogram_noise: ArrayLike
    dense: bool = static_field(default=False)
    reach: ArrayLike = dataclasses.field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        check_type("draws", self.draws, FrankWolfe, "a FrankWolfe")
        check_type("descent", self.descent, DPSGD, "a DPSGD")
        other = self.descent.noise is not None or self.descent.looks is not None
        if not isinstance(self.descent.sampler, FullBatch) or other:
            raise TypeError(
                "descent must be on FullBatch with independent noise and no looks, got "
                f"{type(self.descent.sampler).__name__}, {self.descent.noise} and "
                f"{self.descent.looks} looks"
            )
        if self.draws.relation != self.descent.relation:
            raise ValueError(
                f"relations must be the same, got {self.draws.relation} of draws and "
                f"{self.descent.relation} of descent"
            )
        check_nonnegative("histogram_noise", self.histogram_noise)
        known = known_numbers("reach", self.reach)
        if known is not None and not np.all(known >= 0):
            raise ValueError(f"reach must be >= 0, got {self.reach}")

    @classmethod
    def for_budget(
        cls,
        problem: VertexProblem,
        num_records: int,
        budget: Budget,
        *,
        dense: bool | None = None,
        **overrides: Any,
    ) -> "PolishedFrankWolfe":
        r"""Of the precision, 0.4 for draws, 0.06 for histograms, the rest for descent.

        The first round moves all coordinates where noise lets it find an optimum that uses them
        all: $c\,p \le 0.1\, n \sqrt\rho$, with c = 2 under replace-one. The constants were chosen
        on 23 synthetic instances: squared and logistic loss, 30 to 2,000 coordinates of which 3 to
        all matter, correlated or not, radius 0.5 to 8, n = 3,000 to 100,000, epsilon 0.5 to 3.
        There the excess is 0.005 to 0.9 of that of `FrankWolfe`. Momentum and rates were chosen on
        22 others (15 to 250 coordinates, n = 2,000 to 120,000, epsilon 0.25 to 4): excess 0.004 to
        1.18 times that of plain descent, more only where both are worse than the start; in
        `vertex_reference` it is 0.7 to 2.7 times. Where $c\,p > n \sqrt\rho$ descent is plain:
        momentum lost there in `regret`. An optimum of which draws find nothing, and that has
        more coordinates than the rule allows, is better left to `DPSGD`.

        Args:
          problem: `SimplexRisk` over `L1Ball` or `Simplex`; its constants are used, never data.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; delta > 0.
          dense: As in the class; None for the rule.
          **overrides: Other fields, at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is over another domain, `budget` no `Budget`, or an override no
            field.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.SimplexRisk.linear(
          ...     lambda margin, y: 0.5 * (margin - y) ** 2, dpjax.geometry.L1Ball(100),
          ...     grad_range=4.0, smoothness=1.0)
          >>> solver = PolishedFrankWolfe.for_budget(problem, 10_000, dpjax.Budget(1.0, 1e-6))
          >>> solver.draws.sampler.steps, solver.sampler.steps, solver.dense
          (33, 163, True)
        """
        check_fields(cls, overrides)
        request = requested(num_records, budget, "add_or_remove_one")
        _, smooth = one_block(problem)
        bound = _largest_entry(problem)
        check_finite("epsilon", budget.epsilon)
        if budget.delta == 0:
            raise ValueError(
                "delta must be > 0, got 0.0: noise of gradients is Gaussian, which has no pure "
                "epsilon; FrankWolfe takes delta = 0"
            )
        relation = request.relation
        moved = relation_factor(relation)
        failure = _ROUNDS * moved * counting.MOST_SHORTFALL
        rho = (1 - 1e-6) * zcdp_budget(budget, relation=relation, failure_probability=failure)
        plan = planned(problem, num_records, relation, _DRAWS * rho)
        draws = FrankWolfe(
            FullBatch(plan.steps), plan.sharpness, problem.ranges[0], num_records, relation=relation
        )
        left = (1 - _DRAWS - _HISTOGRAMS) * rho / (_ROUNDS * _STEPS)
        p = problem.num_params
        crowd = moved * p / (num_records * math.sqrt(rho))
        swamped = crowd > 1
        descent = DPSGD(
            FullBatch(_STEPS),
            moved / math.sqrt(2 * left),
            bound * math.sqrt(p),
            _RATE * _radius(problem) ** 2 / smooth,
            num_records,
            decay=1 - 5 / _STEPS,
            optimizer=SGD if swamped else _MOMENTUM,
            relation=relation,
            schedule="linear",
            microbatch_size=part_size(p),
        )
        if dense is None:
            dense = crowd <= _DENSE
        noise = moved / math.sqrt(2 * _HISTOGRAMS * rho / _ROUNDS)
        solver = cls(draws, descent, noise, dense, reach=math.inf if swamped else _REACH)
        solver = dataclasses.replace(solver, **overrides)
        return checked_draws(solver, [solver.draws.sharpness * solver.draws.grad_range])

    @functools.cached_property
    def sampler(self) -> FullBatch:
        """All records in every step: draws, and of each round a histogram and the descent."""
        rounds = _ROUNDS * (1 + self.descent.sampler.steps)
        return FullBatch(self.draws.sampler.steps + rounds)

    @property
    def relation(self) -> str:
        """Neighbouring relation of the guarantee."""
        return self.draws.relation

    expected_records = records_in_full("draws.num_records")

    def init(self, problem: VertexProblem, *, key: jax.Array) -> PolishedFrankWolfeState:
        """The state before the first step; the key (*secret*) is for all noise."""
        check_key("key", key)
        _largest_entry(problem)
        for_draws, own = jax.random.split(key)
        draws = self.draws.init(problem, key=for_draws)
        support = jnp.ones(draws.params.shape, bool)
        descent = self.descent.init(OnSupport(problem, support, draws.params), key=own)
        zero = jnp.zeros((), draws.params.dtype)
        return PolishedFrankWolfeState(draws, descent, support, zero, draws.count, own)

    def step(
        self, problem: VertexProblem, batch: PyTree, mask: jax.Array, state: PolishedFrankWolfeState
    ) -> tuple[PolishedFrankWolfeState, PolishedFrankWolfeInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        place = (state.count - self.draws.sampler.steps) % (1 + self.descent.sampler.steps)
        kind = jnp.where(state.count < self.draws.sampler.steps, 0, jnp.where(place == 0, 1, 2))
        none = jnp.full((), -1, jnp.int32)
        still = jnp.zeros((), state.clip_norm.dtype)

        def draw() -> tuple[PolishedFrankWolfeState, jax.Array, jax.Array]:
            draws, info = self.draws.step(problem, batch, mask, state.draws)
            return state._replace(draws=draws), info.indices[0][0], still

        def look() -> tuple[PolishedFrankWolfeState, jax.Array, jax.Array]:
            return self._round(problem, batch, mask, state), none, still

        def descend() -> tuple[PolishedFrankWolfeState, jax.Array, jax.Array]:
            face = OnSupport(problem, state.support, state.draws.params)
            solver = dataclasses.replace(
                self.descent,
                clip_norm=state.clip_norm,
                learning_rate=self._rate(problem, state.support, state.clip_norm),
            )
            descent, info = solver.step(face, batch, mask, state.descent)
            return state._replace(descent=descent), none, info.gradient_norm.astype(still.dtype)

        after, index, norm = jax.lax.switch(kind, [draw, look, descend])
        after = after._replace(count=state.count + 1)
        size = jnp.sum(after.support, dtype=jnp.int32)
        return after, PolishedFrankWolfeInfo(index, norm, after.clip_norm, size)

    def _rate(self, problem: VertexProblem, support: jax.Array, clip_norm: jax.Array) -> jax.Array:
        """The learning rate of a round."""
        descent, size = self.descent, jnp.sum(support)
        noise = descent.noise_multiplier * clip_norm * jnp.sqrt(size) / descent.batch_size
        moved = jnp.maximum(noise * math.sqrt(descent.sampler.steps), 1e-30)
        far = self.reach * _radius(problem) / jnp.sqrt(size)
        largest = jnp.asarray(descent.learning_rate)
        return jnp.clip(far / moved, _LEAST_RATE * largest, largest)

    def _round(
        self, problem: VertexProblem, batch: PyTree, mask: jax.Array, state: PolishedFrankWolfeState
    ) -> PolishedFrankWolfeState:
        """The support and the clip norm of a round, which starts where the one before ended."""
        first = state.count == self.draws.sampler.steps
        point = jnp.where(first, state.draws.params, self._averaged(problem, state))
        support = largest_coordinates(point)
        if self.dense:
            support |= first
        key = jax.random.fold_in(state.key, state.count)
        for_counts, for_descent = jax.random.split(key)
        face = OnSupport(problem, support, point)
        point = face.project(point)
        bound = _largest_entry(problem) * jnp.sqrt(jnp.sum(support))
        bound = jnp.minimum(bound, self.descent.clip_norm).astype(point.dtype)
        edges = bound * 2.0 ** (-jnp.arange(_BINS, dtype=point.dtype) / 2)

        counts = norm_counts(face, point, edges, batch, mask, self.descent.microbatch_size)
        noisy = counting.noisy_counts(for_counts, counts, self.histogram_noise, self._tables)
        allowed = _CUT * jnp.asarray(self.draws.num_records, noisy.dtype)
        # the last edge above which there are few
        few = jnp.cumprod(jnp.cumsum(noisy)[:-1] <= allowed)
        clip_norm = edges[jnp.sum(few).astype(jnp.int32)]
        descent = self.descent.init(face._replace(init=point), key=for_descent)
        return state._replace(descent=descent, support=support, clip_norm=clip_norm)

    def _averaged(self, problem: VertexProblem, state: PolishedFrankWolfeState) -> jax.Array:
        begun = state.descent._replace(count=jnp.maximum(state.descent.count, 1))
        return jnp.asarray(self.descent.finalize(problem, begun))

    def finalize(self, problem: VertexProblem, state: PolishedFrankWolfeState) -> PyTree:
        """The last round's average, or what there is before its first step."""
        begun = state.descent.count > 0
        descended = jnp.where(begun, self._averaged(problem, state), state.descent.params)
        looked = state.count > self.draws.sampler.steps
        return problem.assemble((jnp.where(looked, descended, state.draws.params),))

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "histogram_noise")
        draws, descent = self.draws.guarantee(), self.descent.guarantee()
        noise = float(np.asarray(self.histogram_noise))
        events = [
            draws.event,
            dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(noise), _ROUNDS),
            dpe.SelfComposedDpEvent(descent.event, _ROUNDS),
        ]
        failure = _ROUNDS * relation_factor(self.relation) * counting.noisy_counts_shortfall(noise)
        failure += self.sampler.failure_probability()
        return Guarantee(dpe.ComposedDpEvent(events), self.relation, failure)

    @derived
    def _tables(self) -> counting.CountTables | None:
        return counting.count_tables(self.histogram_noise)


def norm_counts(
    face: OnSupport,
    point: jax.Array,
    edges: jax.Array,
    batch: PyTree,
    mask: jax.Array,
    size: int | None,
) -> jax.Array:
    """Records by the norm of their gradient, `[bins]` int32. **Not private**: each is in one bin.

    Which one follows from the number of rows too, by a last bit: `solve` makes that public.

    Args:
      face: The problem.
      point: Where gradients are taken, `[p]`.
      edges: From the largest down, `[bins]`; the first bin is of what exceeds the second edge.
      batch: Leaves `[B, ...]` (*secret*).
      mask: bool `[B]`.
      size: Records whose gradients coexist; None for as many as make 2^20 numbers, or 16.
    """

    def count(part: PyTree, part_mask: jax.Array, _: object) -> jax.Array:
        norms = per_example_norm(face.per_example_gradients(point, part))
        place = jnp.sum(norms[:, None] <= edges[None, 1:], axis=1)
        counts = jnp.zeros(edges.shape, jnp.int32)
        kept = part_mask & jnp.isfinite(norms)
        return counts.at[jnp.where(kept, place, edges.size)].add(1, mode="drop")

    size = size or part_size(point.size)
    counts: jax.Array = in_whole_parts(count, batch, mask, size, jnp.add)
    return counts


def largest_coordinates(point: jax.Array) -> jax.Array:
    """Twice as many coordinates `[p]` as the point seems to have, and two more; bool `[p]`."""
    sizes = jnp.abs(point)
    effective = jnp.sum(sizes) ** 2 / jnp.maximum(jnp.sum(sizes**2), jnp.finfo(sizes.dtype).tiny)
    number = jnp.minimum(jnp.ceil(2 * effective) + 2, sizes.shape[0]).astype(jnp.int32)
    places = jnp.arange(sizes.shape[0], dtype=jnp.int32)
    rank = jnp.zeros_like(places).at[jnp.argsort(-sizes)].set(places)
    return rank < number


def _radius(problem: VertexProblem) -> ArrayLike:
    """R, the largest l1 norm of a point."""
    domain = problem.domains[0]
    return domain.radius if isinstance(domain, L1Ball) else 1.0


def _largest_entry(problem: VertexProblem) -> Any:
    """The largest entry of a gradient, up to constants, of the problem's range."""
    what = "over an L1Ball or a Simplex, whose points have coordinates to choose from"
    more = "; FrankWolfe takes any polytope"
    check_type("problem", problem.domains[0], L1Ball | Simplex, what, more)
    return problem.ranges[0] / (2 * _radius(problem))
