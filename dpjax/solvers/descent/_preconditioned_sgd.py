"""Stochastic gradient descent in the metric of noisy second moments of the inputs."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import (
    Aggregator,
    Problem,
    PyTree,
    Sampler,
    check_between,
    check_fields,
    check_int,
    check_key,
    check_type,
    check_unstacked,
    static_field,
    wide,
)
from dpjax.privacy import Budget, Guarantee, joint_release
from dpjax.problems import LinearLogits, RateConstrained
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.descent import _dpsgd as dpsgd
from dpjax.solvers.descent._dpsgd_defaults import largest_batch
from dpjax.transforms import OuterProduct, add_gaussian, clip_by_norm, microbatched_sum
from dpjax.transforms.clipping._lengths import clip_or_measure, typical_length
from dpjax.transforms.clipping._weighted_sum import noised_sum

_CURVATURE = 0.5  # largest eigenvalue of cross-entropy's second derivative in the logits
_LONG = 1.5  # inputs whose squared length is more than so many typical ones are clipped
_SHARE = 0.15  # of the steps, for second moments
_FLOW, _MOST_FLOW = 0.6, 60.0  # sum of the rates: the first over the noise


class PreconditionedSGDState(NamedTuple):
    """State of `PreconditionedSGD`; all of it but the key is covered by the guarantee.

    Attributes:
      params: The iterate, `{"w": [p, K], "b": [K]}`.
      average: Exponential average of the iterates, a tree like `params`.
      measured: Noisy sums of the logarithms of lengths and of 1, `[2]`.
      moment: Noisy sum of second moments of inputs, `[p + 1, p + 1]`.
      inverse: What gradients are multiplied by, `[p + 1, p + 1]`.
      count: Number of steps so far, `[]` int32 (*public*).
      key: Key of the noise, `[]` (*secret*).
    """

    params: PyTree
    average: PyTree
    measured: jax.Array
    moment: jax.Array
    inverse: jax.Array
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


_Outcome: TypeAlias = tuple[PreconditionedSGDState, dpsgd.DPSGDInfo]


@register_solver
@dataclasses.dataclass(frozen=True)
class PreconditionedSGD:
    r"""Private descent on a linear classifier, in the metric of noisy second moments of its inputs.

    $$ W_{t+1} = W_t - \eta_t\, (\beta (\hat M + \mu I))^{-1} \tilde g_t, \qquad
       \hat M \approx \frac1n \sum_i u_i u_i^\top, \quad u_i = (x_i, 1) $$

    Gradients of linear models are long along a few directions of the inputs and short along most:
    plain descent never gets far along these, however little noise there is. The steps come in three
    parts. The first `looks` measure $\rho$, the geometric mean of the lengths of $u_i$; gradients
    are about $s = \rho \sqrt{1 - 1/K}$ long at first. The next `moment_looks` sum up $u u^\top$,
    clipped to $1.5 \rho^2$; $\hat M$ has no negative eigenvalues, and $\mu$ is `damping` times an
    eigenvalue that is noise alone. The others descend along $\tilde g_t$, the noisy mean of
    gradients clipped to `clip_norm` times s, at a rate that falls linearly to 0. $\beta = 1/2$
    bounds the second derivative of cross-entropy in the logits.

    Guarantee: that of `DPSGD` with the same sampler and noise multiplier z. Each step releases one
    sum over its batch, of vectors that are clipped to an l2 norm C which earlier releases
    determine, with Gaussian noise of deviation z C: `sampler.event(GaussianDpEvent(z))`. Clipping
    enforces it for any data; all else is post-processing.

    | input | effect |
    | --- | --- |
    | empty batch | noise alone |
    | NaN or inf in a record, or a label out of range | it contributes nothing |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: Which records enter each step, and the number of steps (static).
      noise_multiplier: z >= 0, a scalar (data).
      clip_norm: Clip norm of gradients in units of s, a scalar >= 0 (data).
      learning_rate: Rate of the first step of descent, a scalar; from 2 on it does not converge
        (data).
      batch_size: Public normaliser of a batch, a scalar > 0 (data).
      damping: A scalar >= 0 (data).
      decay: Of the average of the iterates, in [0, 1] (data).
      looks: Number of steps that measure lengths, >= 1 (static).
      moment_looks: Number of steps that measure second moments, >= 1 (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound, no step of descent is left, or the sampler does
        not fit the relation.
      TypeError: If `sampler` is no `Sampler`, or a number of steps no integer.

    Source: Ganesh, Haghifam, Steinke and Thakurta 2023 (arXiv 2305.13209) for noisy curvature in
    private descent; Boehning 1992 for the bound by second moments of inputs.
    """

    sampler: Sampler = dataclasses.field(metadata={"static": True})
    noise_multiplier: ArrayLike
    clip_norm: ArrayLike
    learning_rate: ArrayLike
    batch_size: ArrayLike
    damping: ArrayLike = 1.0
    decay: ArrayLike = 0.99
    looks: int = static_field(default=1)
    moment_looks: int = static_field(default=1)
    relation: str = static_field(default="add_or_remove_one")

    def __post_init__(self) -> None:
        requests.check_sampler(self.sampler, self.relation)
        requests.check_values(
            self,
            positive=("batch_size",),
            nonnegative=("noise_multiplier", "clip_norm", "learning_rate", "damping"),
            counts=("looks", "moment_looks"),
        )
        check_between("decay", self.decay, 0, 1)
        check_int("sampler.steps", self.sampler.steps, minimum=self._first + 1)

    @classmethod
    def for_budget(
        cls,
        problem: Problem,
        num_records: int,
        budget: Budget,
        *,
        sampler: Sampler | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        **overrides: Any,
    ) -> Self:
        r"""A solver with defaults that train, its noise calibrated to `budget`.

        A hundredth of the steps measures lengths and 15% second moments. With $\nu$ the norm of the
        noise in the mean of all gradients over the clip norm, rates add up to $0.6 / \nu$, at most
        60, and none is above 1.

        Args:
          problem: `RateConstrained.linear` without constraints.
          num_records: *Public* bound on the number of records; also the nominal size in the
            normaliser.
          budget: epsilon, delta and relation to meet; the relation defaults to add-or-remove-one.
          sampler: Which records enter each step; default: Poisson at rate
            `batch_size / num_records`.
          batch_size: Expected records a batch; default a sixteenth, at least 256, and at most 1024
            or 2^20 over the number of parameters, whichever is more.
          steps: Number of steps; default 1000.
          **overrides: Other fields; `noise_multiplier` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If the problem is of another kind, `num_records` or `steps` no integer, or an
            override no field.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.RateConstrained.linear(num_features=5, num_classes=4)
          >>> solver = dpjax.solvers.PreconditionedSGD.for_budget(
          ...     problem, num_records=10_000, budget=dpjax.Budget(1.0, 1e-5), steps=200)
          >>> solver.guarantee().epsilon(1e-5) <= 1.0
          True

        Source: chosen on softmax regressions of eight tables, among them diamonds, supermarket
        purchases and surveys, and seven synthetic ones: 5 to 40 features, 3 to 10 classes, n =
        1,600 to 43,000, epsilon 0.25 to 4. Ten more tables and digits were looked at before rates
        were settled.
        """
        problem = _of_linear_logits(problem)
        if sampler is None:
            most = largest_batch(problem.num_params)
            sampler = requests.default_sampler(num_records, batch_size, steps, budget, most)
        check_fields(cls, overrides)
        request = requests.requested(num_records, budget, sampler=sampler)
        if "noise_multiplier" not in overrides:
            overrides["noise_multiplier"] = request.noise_of_run(sampler)
        defaults = {
            "clip_norm": 1.0,
            "batch_size": num_records * sampler.participation_rate(num_records),
            "looks": math.ceil(sampler.steps / 100),
            "moment_looks": math.ceil(_SHARE * sampler.steps),
        }
        fields = dict(defaults, **overrides)
        left = max(1, sampler.steps - fields["looks"] - fields["moment_looks"])
        noise = fields["noise_multiplier"] * math.sqrt(problem.num_params / left)
        relative = noise / fields["batch_size"]
        flow = min(_MOST_FLOW, _FLOW / relative) if relative > 0 else _MOST_FLOW
        fields.setdefault("learning_rate", min(1.0, 2 * flow / left))
        fields.setdefault("decay", max(0.0, 1 - 5 / left))
        solver = cls(sampler, relation=request.relation, **fields)
        return requests.checked_gradients(solver, problem, num_records)

    expected_records = requests.records_in_full("batch_size")

    def init(self, problem: RateConstrained, *, key: jax.Array) -> PreconditionedSGDState:
        """The state before the first step; the key (*secret*) is for the noise."""
        check_key("key", key)
        _of_linear_logits(problem)
        params = jax.tree.map(jnp.asarray, problem.init)
        square = jnp.zeros(2 * (params["w"].shape[0] + 1,), wide(params["w"]).dtype)
        average, count = dpsgd.init_average("ema", params), jnp.zeros((), jnp.int32)
        return PreconditionedSGDState(params, average, jnp.zeros(2), square, square, count, key)

    def step(
        self,
        problem: RateConstrained,
        batch: PyTree,
        mask: jax.Array,
        state: PreconditionedSGDState,
    ) -> tuple[PreconditionedSGDState, dpsgd.DPSGDInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        length, squared = self._lengths(state)
        clip_norm, longest = jnp.asarray(self.clip_norm) * length, _LONG * squared

        def gradients(part: PyTree) -> PyTree:
            return problem.per_example_gradients(state.params, part)

        def inputs(part: PyTree) -> jax.Array:  # NaN for invalid records, which so count nothing
            x = wide(part["x"])
            x = jnp.concatenate([x, jnp.ones((x.shape[0], 1), x.dtype)], axis=1)
            valid = problem.valid(problem.class_logits(state.params, part["x"]), part)
            return jnp.where(valid[:, None], x, jnp.nan)

        def products(part: PyTree) -> OuterProduct:
            u = inputs(part)
            return OuterProduct(u, u)

        def noisy(of: Callable[[PyTree], PyTree], aggregate: Aggregator) -> PyTree:
            total = microbatched_sum(of, aggregate, batch, mask, size=None)
            noise = add_gaussian(self.noise_multiplier * aggregate.sensitivity("add_or_remove_one"))
            key = jax.random.fold_in(state.key, state.count)  # one draw a step
            return noised_sum(noise, total, noise.init(total), rows=mask.shape[0], key=key)[0]

        zero = jnp.zeros(())

        def look() -> _Outcome:
            _, measured = noisy(inputs, clip_or_measure(0.0, True))
            measured = (state.measured + measured).astype(state.measured.dtype)
            return state._replace(measured=measured), dpsgd.DPSGDInfo(zero, zero)

        def measure() -> _Outcome:
            more = noisy(products, clip_by_norm(longest)).astype(state.moment.dtype)
            moment = state.moment + more
            last = state.count == self._first - 1
            inverse = jax.lax.cond(
                last, lambda: self._inverse(moment, longest), lambda: state.inverse
            )
            return state._replace(moment=moment, inverse=inverse), dpsgd.DPSGDInfo(zero, zero)

        def descend() -> _Outcome:
            total = noisy(gradients, clip_by_norm(clip_norm))
            mean = jax.tree.map(lambda g: wide(g) / self.batch_size, total)
            norm = optax.tree.norm(mean).astype(zero.dtype)
            info = dpsgd.DPSGDInfo(norm, clip_norm.astype(zero.dtype))
            return self._descended(mean, state), info

        part = jnp.sum(state.count >= jnp.array([self.looks, self._first]))
        after, info = jax.lax.switch(part, (look, measure, descend))
        return after._replace(count=state.count + 1), info

    @property
    def _first(self) -> int:
        """The first step of descent."""
        return self.looks + self.moment_looks

    def _lengths(self, state: PreconditionedSGDState) -> tuple[jax.Array, jax.Array]:
        """Typical length of gradients, and the square of that of inputs; of looks so far."""
        records, stddev = self.looks * self.batch_size, self.looks**0.5 * self.noise_multiplier
        length = typical_length(state.measured, records, stddev)
        # of (p - e_y) u^T, where all classes are as likely
        return length * (1 - 1 / state.params["b"].size) ** 0.5, length**2

    def _inverse(self, moment: jax.Array, longest: jax.Array) -> jax.Array:
        records = self.moment_looks * self.batch_size
        deviation = self.noise_multiplier * longest * self.moment_looks**0.5 / records
        values, basis = jnp.linalg.eigh((moment + moment.T) / (2 * records))
        # as large as the largest that is noise alone, and no division by 0
        floor = self.damping * deviation * len(moment) ** 0.5 + 1e-6 * longest
        eigenvalues = (_CURVATURE * (jnp.maximum(values, 0) + floor)).astype(basis.dtype)
        shrunk = basis / eigenvalues[None, :]
        return jnp.matmul(shrunk, basis.T, precision="highest").astype(moment.dtype)

    def _descended(self, mean: PyTree, state: PreconditionedSGDState) -> PreconditionedSGDState:
        done = state.count - self._first
        rate = self.learning_rate * (1 - done / (self.sampler.steps - self._first))
        rows = jnp.concatenate([mean["w"], mean["b"][None]])
        move = -rate * jnp.matmul(state.inverse, rows, precision="highest")
        moves = {"w": move[:-1], "b": move[-1]}
        params = jax.tree.map(lambda p, m: (p + m).astype(p.dtype), state.params, moves)
        average = dpsgd.update_average("ema", state.average, params, done + 1, self.decay)
        return state._replace(params=params, average=average)

    def finalize(self, problem: RateConstrained, state: PreconditionedSGDState) -> PyTree:
        """The averaged parameters."""
        done = jnp.maximum(state.count - self._first, 1)
        return dpsgd.read_average("ema", state.average, state.params, done, self.decay)

    def diagnose(
        self,
        problem: RateConstrained,
        batch: PyTree,
        mask: jax.Array,
        state: PreconditionedSGDState,
    ) -> dict[str, jax.Array]:
        """Raw values of a step, **not private**: batch size and share of clipped records."""
        clip_norm = self.clip_norm * self._lengths(state)[0]
        gradients = problem.per_example_gradients(state.params, batch)
        return dpsgd.clipping_diagnostics(gradients, mask, clip_norm)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_multiplier")
        event = self.sampler.event(joint_release(gaussian=np.asarray(self.noise_multiplier).item()))
        return Guarantee(event, self.relation, self.sampler.failure_probability())


def _of_linear_logits(problem: object) -> RateConstrained:
    """The problem, if it is a linear classifier without constraints; else raises an error."""
    what = "dpjax.problems.RateConstrained.linear"
    check_type("problem", problem, RateConstrained, f"a {what}")
    checked = cast(RateConstrained, problem)
    check_type("problem.logits", checked.logits, LinearLogits, f"those of {what}")
    if checked.num_constraints:
        raise ValueError(
            "problem must have no constraints, which RateConstrainedSGDA is for, got "
            f"{checked.num_constraints}"
        )
    return checked
