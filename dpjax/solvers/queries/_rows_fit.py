"""Query release over a universe of any size: one Gaussian release and a mixture of products."""

import dataclasses
import functools
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree, check_type, static_field
from dpjax.privacy import Budget
from dpjax.problems import QueryRelease
from dpjax.queries import Hierarchy, Marginals, RowModel
from dpjax.queries._row_model import TableCells, table_answers
from dpjax.queries._workload import Workload, check_counted
from dpjax.solvers._request import check_values
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries._budget import Number
from dpjax.solvers.queries._gaussian_fit import FLOOR, AnswersMeasurement, GaussianFitState

_KNEE = 2.5  # in units of the noise: residuals beyond it count more
_STEP, _LAST_STEP, _STEADY = 0.1, 1e-3, 0.3
_SPREAD = 0.5  # of the logits that rows start from
_INFORMATION = 300.0
_CANDIDATES = (30.0, 100.0, 300.0, 1000.0)
_TRIAL = 500  # most steps of a fit that is only scored
_SPLIT = 0.25  # noise added to what is fitted, in units of the noise there is
_REACH = 2.0  # weights of a log-linear distribution that residuals of 3.5 must allow


class ReleasedRows(NamedTuple):
    """The result of `RowsFit`; post-processing of what its guarantee covers.

    Attributes:
      model: The mixture.
      answers: Its answers to the workload, `[m]`.
      information: The weight of the penalty that was used, `[]`.
      misfit: Mean square of residuals in units of the noise, `[]`; about 1 or below.
      decrease: Norm of the gradient at the end over that at the start, `[]`.
    """

    model: RowModel
    answers: jax.Array
    information: jax.Array
    misfit: jax.Array
    decrease: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class RowsFit(AnswersMeasurement):
    r"""Gaussian noise on marginals, then a mixture of products near them with little information.

    $$ p(z) = \sum_k w_k \prod_a p_{ka}(z_a), \qquad
       \min_p \sum_j \phi\Big(\frac{\langle q_j, p \rangle - y_j}{\sigma_j}\Big)
       + \lambda \sum_k w_k \sum_a \mathrm{KL}(p_{ka} \Vert q_a) $$

    with y the noisy answers, q the product of the noisy tables of one attribute and
    $\phi(r) = r^2/2 + \beta (|r| - 2.5)_+^2 / 2$. The sum of divergences is above that of p from
    q, so that the fit is close to the one of largest entropy; it is convex in the mixing measure.
    Minimised by Adam from random rows, `fits` times; the result is the mean of the fits. Nothing
    of the size of the universe is formed: memory is for K numbers a code, the square of the number
    of codes, and K numbers a measured cell of three attributes or more.

    With `information=None` the weight $\lambda$ is one of 30, 100, 300, 1000, by data fission:
    public noise splits the noisy answers into two uncorrelated parts, of which one is fitted and
    the other scores the fit; twice, with the noise and with its negative, so that it cancels. It is
    the largest whose score is within a standard error of the best.

    Guarantee: one Gaussian release. A record moves the answers by `measured.sensitivity`, table by
    table divided by n, and the event is `GaussianDpEvent` of the l2 norm of these in units of the
    tables' noise; integers are released, divided by n after that. The distance of the sampler of
    integer noise from it is declared as failure probability. All else is post-processing.

    | input | effect |
    | --- | --- |
    | `stddev` 0 | no noise; the event is non-private |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      measured: `Marginals` that are measured; need not be those that are answered (data).
      stddev: sigma in units of an answer, one number, or `[c]`, one for each marginal (data).
      num_records: n, by which counts are divided (data).
      information: lambda, or None (data).
      excess: beta (data).
      rows: K of one fit (static).
      fit_steps: Steps of Adam (static).
      fits: How many are averaged (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler or what is measured is of another kind.

    Source: Aydore et al. 2021 and Liu, Vietri and Wu 2021 fit such mixtures; particles of a convex
    problem after Chizat and Bach 2018; fission after Leiner et al. 2023; the standard error after
    Breiman et al. 1984.
    """

    measured: Marginals
    information: Number | None = _INFORMATION
    excess: Number = 20.0
    rows: int = static_field(default=300)
    fit_steps: int = static_field(default=1000)
    fits: int = static_field(default=8)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.measured, Workload):
            check_type("measured", self.measured, Marginals, "Marginals")
        counts = ("rows", "fit_steps", "fits")
        check_values(self, positive=("information",), nonnegative=("excess",), counts=counts)

    @classmethod
    def for_budget(
        cls, problem: QueryRelease, num_records: int, budget: Budget, **fields: Any
    ) -> Self:
        """The solver whose noise just meets the budget, as of `GaussianFit.for_budget`.

        `information` defaults to 300, or to None where noise is so large that residuals of 3.5
        times it would bound the weights of a log-linear distribution below 2.

        Args:
          problem: `QueryRelease`, with `max_bytes=None` where the universe is large.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          **fields: `measured`, `allocation`, or others of the solver.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` is not an integer, or a field unknown.
        """
        solver = super().for_budget(problem, num_records, budget, **fields)
        reach = 3.5 / (float(np.max(solver.stddev)) * _INFORMATION)
        if "information" not in fields and reach < _REACH:
            solver = dataclasses.replace(solver, information=None)
        return solver

    def _sums(self, records: PyTree, mask: jax.Array) -> jax.Array:
        check_counted(mask.shape[0])
        return self.measured.counts(records, mask)

    def finalize(self, problem: QueryRelease, state: GaussianFitState) -> ReleasedRows:
        """The fit, and its answers."""
        measured, values = self.measured, state.measured
        # rounding to whole records adds a twelfth
        variance = jnp.square(self.stddevs()) + jnp.square(1 / jnp.asarray(self.num_records)) / 12
        noise = jnp.maximum(jnp.sqrt(variance), FLOOR)
        total = self.total(values, noise)
        values, noise = values / total, noise / total
        # public noise: by a key that the release does not use
        split, trial, starts = jax.random.split(jax.random.fold_in(state.key, 1), 3)
        shape, cells = measured.domain.shape, TableCells.of(measured)
        excess = jnp.asarray(self.excess, values.dtype)
        fit = functools.partial(_fit, shape, cells, excess=excess)
        size = (self.rows, sum(shape))
        information = self.information
        if information is None:
            drawn = noise * jax.random.normal(split, values.shape, values.dtype)
            drawn = jnp.stack([drawn, -drawn])  # so that what they add cancels
            seen, held = values[None] + _SPLIT * drawn, values[None] - drawn / _SPLIT
            louder = jnp.sqrt(1 + _SPLIT**2) * noise
            start = jax.random.normal(trial, size, values.dtype)

            def score(weight: jax.Array, seen: jax.Array, held: jax.Array) -> jax.Array:
                tables = _base(measured, seen, louder)
                found = fit(tables, seen, louder, weight, start, steps=min(self.fit_steps, _TRIAL))
                answers = table_answers(jnp.exp(found.log_rows), jnp.exp(found.log_weights), cells)
                return jnp.square((answers - held) / noise)

            weights = jnp.asarray(_CANDIDATES, values.dtype)
            trials = functools.partial(jax.lax.map, xs=weights)
            scores = jax.lax.map(lambda parts: trials(lambda w: score(w, *parts)), (seen, held))
            each = jnp.sum(scores, axis=0)
            more = each - each[jnp.argmin(jnp.sum(each, axis=1))][None]
            error = jnp.std(more, axis=1) * np.sqrt(len(values))
            # where scores are about equal, more of it has less error in the mean over tables
            information = jnp.max(jnp.where(jnp.sum(more, axis=1) <= error, weights, 0))
        base, weight = _base(measured, values, noise), jnp.asarray(information, values.dtype)
        drawn = jax.random.normal(starts, (self.fits, *size), values.dtype)
        whole = functools.partial(fit, base, values, noise, weight, steps=self.fit_steps)
        found = jax.lax.map(whole, drawn)
        log_rows = found.log_rows.reshape(-1, sum(shape))
        log_weights = found.log_weights.reshape(-1) - np.log(self.fits)
        ends = tuple(np.cumsum(shape)[:-1].tolist())
        model = RowModel(measured.domain, tuple(jnp.split(log_rows, ends, axis=1)), log_weights)
        answers = model.answers(measured)
        misfit = jnp.mean(jnp.square((answers - values) / noise))
        if problem.workload is not measured:
            answers = model.answers(problem.workload)
        return ReleasedRows(model, answers, weight, misfit, jnp.max(found.decrease))


class _Rows(NamedTuple):
    log_rows: jax.Array
    log_weights: jax.Array
    decrease: jax.Array


def _base(measured: Marginals, values: jax.Array, noise: jax.Array) -> jax.Array:
    """Logs of the noisy tables of one attribute, by all that is measured of them: `[D]`."""
    hierarchy = Hierarchy(measured)
    estimate, spread = hierarchy.combine(values, noise)
    shape = measured.domain.shape
    filled = np.arange(max(shape)) < np.array(shape)[:, None]
    place = np.full(filled.shape, hierarchy.closure.num_queries)
    for clique, offset in zip(hierarchy.closure.cliques, hierarchy.closure.offsets, strict=True):
        if len(clique) == 1:
            (axis,) = measured.domain.axes(clique)
            place[axis, : shape[axis]] = offset + np.arange(shape[axis])
    # what no table holds is uniform
    tables = jnp.where(filled, jnp.append(estimate, 0.0)[place], -1e3)
    least = jnp.append(spread, 0.0)[place] / 10
    tables = jax.vmap(optax.projections.projection_simplex)(tables)
    tables = jnp.where(filled, jnp.maximum(tables, jnp.maximum(least, FLOOR)), 0)
    return jnp.log(tables / jnp.sum(tables, axis=1, keepdims=True))[filled]


@functools.partial(jax.jit, static_argnames=("shape", "steps"))
def _fit(
    shape: tuple[int, ...],
    cells: TableCells,
    base: jax.Array,
    values: jax.Array,
    noise: jax.Array,
    information: jax.Array,
    drawn: jax.Array,
    *,
    excess: jax.Array,
    steps: int,
) -> _Rows:
    """One mixture of products, by Adam from rows that are off the product by `drawn` `[K, D]`."""
    attribute = np.repeat(np.arange(len(shape)), shape)
    member = jnp.asarray(attribute[:, None] == np.arange(len(shape)), base.dtype)

    def normal(logits: jax.Array) -> jax.Array:
        # logits are near normal ones, so that no exponential overflows
        sums = jnp.matmul(jnp.exp(logits), member, precision="highest")
        return logits - jnp.log(sums)[:, attribute]

    def objective(at: tuple[jax.Array, jax.Array]) -> jax.Array:
        log_rows, weights = normal(at[0]), jax.nn.softmax(at[1])
        p = jnp.exp(log_rows)
        residuals = (table_answers(p, weights, cells) - values) / noise
        beyond = jnp.maximum(jnp.abs(residuals) - _KNEE, 0)
        misfit = jnp.sum(jnp.square(residuals) + excess * jnp.square(beyond)) / 2
        rate = weights @ jnp.sum(p * (log_rows - base[None]), axis=1)
        return (misfit + information * rate) / len(values)

    steady = round(_STEADY * steps)
    decay = optax.cosine_decay_schedule(_STEP, max(steps - steady, 1), alpha=_LAST_STEP / _STEP)
    adam = optax.adam(
        optax.join_schedules([optax.constant_schedule(_STEP), decay], [steady]), b1=0.9, b2=0.99
    )
    at = (normal(base[None] + _SPREAD * drawn), jnp.zeros(len(drawn), base.dtype))

    def step(carry: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], jax.Array]:
        at, state = carry
        grads = jax.grad(objective)(at)
        updates, state = adam.update(grads, state)
        logits, weights = optax.apply_updates(at, updates)
        return ((normal(logits), weights), state), jnp.sqrt(optax.tree.vdot(grads, grads))

    (at, _), norms = jax.lax.scan(step, (at, adam.init(at)), None, length=steps)
    return _Rows(normal(at[0]), jax.nn.log_softmax(at[1]), norms[-1] / norms[0])
