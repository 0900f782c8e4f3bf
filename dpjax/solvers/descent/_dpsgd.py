"""Differentially private stochastic gradient descent."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import (
    Problem,
    PyTree,
    Sampler,
    Transform,
    check_between,
    check_key,
    check_positive,
    check_unstacked,
    optional,
    static_field,
)
from dpjax.core._checks import known_numbers
from dpjax.privacy import Budget, Guarantee
from dpjax.privacy._warnings import warn
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.descent import _dpsgd_defaults as defaults
from dpjax.transforms import (
    NoiseStrategy,
    add_gaussian,
    clip_by_norm,
    clip_scale,
    correlated_noise,
    microbatched_sum,
)
from dpjax.transforms.clipping._lengths import clip_or_measure, typical_length
from dpjax.transforms.clipping._weighted_sum import noised_sum

SGD = optax.sgd(1.0)
_CURVED = (1.0, 12.0)  # lengths of gradients, where curvature is thought to be their square
_MOST_LENGTHS = 4.0  # what `clip_floor` may be
AVERAGES = ("ema", "uniform", "last")


def init_average(kind: str, params: PyTree) -> PyTree:
    """A running average of nothing yet; () where none is kept."""
    return () if kind == "last" else jax.tree.map(jnp.zeros_like, params)


def update_average(
    kind: str, average: PyTree, params: PyTree, count: jax.Array, decay: ArrayLike
) -> PyTree:
    """Takes in the iterate after `count` (>= 1) steps."""
    if kind == "last":
        return ()
    rate = 1 / count if kind == "uniform" else 1 - jnp.asarray(decay)
    return jax.tree.map(
        lambda a, p: a + jnp.asarray(rate, a.dtype) * (p.astype(a.dtype) - a), average, params
    )


def read_average(
    kind: str, average: PyTree, params: PyTree, count: jax.Array, decay: ArrayLike
) -> PyTree:
    """The average, with the exponential one corrected for its start at zero."""
    if kind == "last":
        return params
    if kind == "uniform":
        return average
    correction = 1 - jnp.asarray(decay) ** count
    return jax.tree.map(lambda a: a / jnp.asarray(correction, a.dtype), average)


class DPSGDState(NamedTuple):
    """State of `DPSGD`; all of it but the key is covered by the guarantee.

    Attributes:
      params: The iterate, a tree.
      opt_state: That of the optimizer.
      noise: That of the noise.
      average: Average of the iterates, a tree like `params`; `()` if the last one is returned.
      count: Number of steps so far, `[]` int32 (*public*).
      key: Key of the noise, `[]` (*secret*).
      measured: Noisy sums of the logarithms of lengths and of 1, of wide and of narrow looks,
        `[2, 2]`; `()` without `looks`.
    """

    params: PyTree
    opt_state: PyTree
    noise: PyTree
    average: PyTree
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array
    measured: PyTree = ()


class DPSGDInfo(NamedTuple):
    """Released values of a step.

    Attributes:
      gradient_norm: The l2 norm of the noisy mean gradient, `[]`; 0 of a look.
      clip_norm: That of the step, in units of a gradient, `[]`; 0 of a look.
    """

    gradient_norm: jax.Array
    clip_norm: jax.Array


@register_solver
@dataclass(frozen=True)
class DPSGD:
    r"""Clipped, noised, averaged stochastic gradient descent.

    $$ g_t = \frac1m \Big(\sum_{i \in B_t} \mathrm{clip}_C(\nabla\ell_i(\theta_t))
       + z C\, \mathcal N(0, I)\Big), \qquad
       \theta_{t+1} = \theta_t + \eta_t\, \mathrm{optimizer}(g_t) $$

    with $\eta_t$ the learning rate, or with `schedule="linear"` that times $1 - t / T$, t from 0.

    Guarantee: l2 sensitivity C of the sum under add-or-remove-one, enforced by clipping, with
    noise larger by what rounding of the sum may add to it (`rounding_allowance`);
    with `PoissonSampler(rate, steps, ...)` the event is
    `SelfComposed(PoissonSampled(rate, Gaussian(z)), steps)`, plus
    `(1 + e^epsilon) * sampler.failure_probability()` in delta. With `noise`, a strategy that
    correlates it over the steps, the event of all steps is `noise.event(z)`, with no amplification
    by sampling, for samplers whose records are in no more steps, and no nearer ones, than it is
    made for; of `Banded` noise it is that of z apart in each of a record's steps, amplified with
    `CyclicPoisson`. The optimizer, the projection and the averaging are post-processing. Works
    with every problem that has `init`, `per_example_gradients(params, batch)` and
    `project(params)`.

    | input | effect |
    | --- | --- |
    | empty batch | a step on noise alone |
    | NaN or inf record, label out of range | contributes nothing |
    | clip norm 0 | sum and noise are 0; the guarantee is that of `z` |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: Which records enter each step (static).
      noise_multiplier: `z >= 0`, noise in units of C (data).
      clip_norm: `C >= 0`, scalar, in units of the gradient of one record (data), or with `looks` of
        the typical length that they measure.
      learning_rate: eta, scalar, multiplies the optimizer's update (data). `for_budget` sets it
        from public numbers for plain descent, and to 1 where an `optimizer` is given. With `looks`
        and plain descent it is divided by the length s that they measure, as `rate_power` says.
      schedule: `"constant"`, or `"linear"`, down to 0 over the sampler's steps (static).
      batch_size: m, scalar, the public normaliser; never the realised batch size (data).
      decay: Decay of the exponential average, scalar in [0, 1) (data).
      average: `"ema"`, `"uniform"` or `"last"`: which iterate is returned (static).
      optimizer: An optax transformation (static); keep one object for a sweep. Of learning rate 1
        where `learning_rate` has it, or with its own and `learning_rate=1`.
      microbatch_size: Records a microbatch; None for the default of `microbatched_sum` (static).
      relation: Neighbouring relation of the guarantee (static).
      noise: A strategy that correlates noise over the steps, of at least as many (static); None for
        independent noise.
      looks: So many of the steps, the first, leave the parameters and measure how long gradients
        are, the geometric mean; scalar (data), at least 1 and less than `sampler.steps`, or None
        for none. For independent noise.
      narrow_looks: Number of looks, the last ones, that measure only within a factor of $e^{2.5}$
        of the length the others found, with a quarter of the noise in its logarithm; scalar (data).
      rate_power: p, 1 or 2 (static): with `looks` and plain descent a step is
        $\eta\, (C s / C_t) / s^p$ with $C_t$ the clip norm of the step; 2 where the scale of
        parameters follows from that of features, 1 where that of the first parameters tells it.
        Of s below 1 or above 12, $s^2$ is s times the nearer end, unless `length_bound` is given.
      clip_floor: With `looks`, the clip norm of a step is at least this, or 4 lengths where that is
        less; scalar, in units of a gradient (data).
      length_bound: With `looks`, the stated largest length of a gradient, scalar: s and clip norms
        are at most that, and s is near it where noise hides the lengths; None for no bound (data).

    Raises:
      ValueError: If a value is outside its bound, or sampler and noise do not fit.
      TypeError: If `sampler` is no `Sampler`, `noise` no `NoiseStrategy`, or `microbatch_size` no
        integer.

    Source: Song, Chaudhuri and Sarwate 2013; Bassily, Smith and Thakurta 2014; Abadi et al. 2016.
    """

    sampler: Sampler = dataclasses.field(metadata={"static": True})
    noise_multiplier: Any
    clip_norm: ArrayLike
    learning_rate: ArrayLike
    batch_size: float | jax.Array
    decay: ArrayLike = 0.99
    average: str = static_field(default="ema")
    optimizer: optax.GradientTransformation = static_field(default=SGD)
    microbatch_size: int | None = static_field(default=None)
    relation: str = static_field(default="add_or_remove_one")
    noise: NoiseStrategy | None = static_field(default=None, kw_only=True)
    schedule: str = static_field(default="constant", kw_only=True)
    looks: ArrayLike | None = dataclasses.field(default=None, kw_only=True)
    narrow_looks: ArrayLike = dataclasses.field(default=0, kw_only=True)
    rate_power: int = static_field(default=1, kw_only=True)
    clip_floor: ArrayLike = dataclasses.field(default=0.0, kw_only=True)
    length_bound: ArrayLike | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        requests.check_sampler(self.sampler, self.relation)
        scales = ("noise_multiplier", "clip_norm", "learning_rate", "clip_floor", "narrow_looks")
        requests.check_values(
            self,
            positive=("batch_size", "length_bound"),
            nonnegative=scales,
            counts=("microbatch_size",),
            average=AVERAGES,
            schedule=("constant", "linear"),
            rate_power=(1, 2),
        )
        check_between("decay", self.decay, 0, 1)
        if self.noise is not None:
            requests.check_participation(self.sampler, self.noise)
        if self.looks is None:
            return
        if defaults.is_correlated(self.noise):
            raise ValueError(f"looks must be None with correlated noise, got {self.looks}")
        check_between("looks", self.looks, 1, max(1, self.sampler.steps - 1))
        some, narrow = known_numbers("", self.looks), known_numbers("", self.narrow_looks)
        if some is not None and narrow is not None:
            check_positive("looks - narrow_looks", some - narrow)

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
        noise: NoiseStrategy | str | None = None,
        **overrides: Any,
    ) -> Self:
        """A solver with defaults that train, its noise calibrated to `budget`.

        Args:
          problem: What will be solved; its number of parameters is used, never data.
          num_records: *Public* bound on the number of records; also the nominal size in the
            normaliser.
          budget: epsilon, delta and relation to meet.
          sampler: Which records enter each step; default: Poisson at rate
            `batch_size / num_records`, or with `noise` disjoint batches.
          batch_size: Expected records a batch; default a sixteenth, from 256 to 1024, or of a small
            model to 2^20 over its number of parameters.
          steps: Number of steps; default 1000, or with `noise` the root of `num_records`.
          noise: As in the class, or by name: `"buffered"`, `"tree"` or `"variance_reduced_tree"`.
          **overrides: Other fields; `noise_multiplier` at the caller's own risk of the budget. The
            learning rate falls linearly, unless `schedule`, `optimizer`, `average` or `noise` is
            given; on both players of a `Saddle` it is constant, and `average` is `"uniform"`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `sampler` is no `Sampler`, `num_records` or `steps` no integer, or an
            override no field.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.RateConstrained.linear(num_features=5, num_classes=2)
          >>> solver = dpjax.solvers.DPSGD.for_budget(
          ...     problem, num_records=10_000, budget=dpjax.Budget(1.0, 1e-5), steps=200)
          >>> solver.guarantee().epsilon(1e-5) <= 1.0
          True
        """
        if noise is None:
            if sampler is None:
                most = defaults.most_records(problem)
                sampler = requests.default_sampler(num_records, batch_size, steps, budget, most)
            request = requests.requested(num_records, budget, sampler=sampler)
            if defaults.two_players(problem):
                overrides.setdefault("average", "uniform")
            defaults.fall_by_default(overrides)
        else:
            request = requests.requested(num_records, budget, "replace_one", sampler)
            sampler = sampler or _single_pass(request, batch_size, steps)
            noise = overrides["noise"] = requests.named_strategy(noise, sampler.steps)
        if "noise_multiplier" not in overrides:
            overrides["noise_multiplier"] = request.noise_of_run(sampler, noise)
        fields = defaults.with_defaults(cls, overrides, sampler, num_records, problem)
        if overrides.get("optimizer", SGD) is not SGD and "learning_rate" not in overrides:
            warn(
                "optimizer is used as given since 0.2, with learning_rate=1: its updates were "
                f"multiplied by {float(fields['learning_rate']):.3g} before, a rate made for SGD; "
                "a learning_rate that is given multiplies them, and silences this until 0.3",
                FutureWarning,
            )
            fields["learning_rate"] = 1.0
        solver = cls(sampler, relation=request.relation, **fields)
        return requests.checked_gradients(solver, problem, num_records)

    expected_records = requests.records_in_full("batch_size")

    def init(self, problem: Problem, *, key: jax.Array) -> DPSGDState:
        """The state before the first step; the key (*secret*) is for the noise."""
        check_key("key", key)
        params = jax.tree.map(jnp.asarray, problem.init)
        return DPSGDState(
            params,
            self.optimizer.init(params),
            self.make_noise().init(params),
            init_average(self.average, params),
            jnp.zeros((), jnp.int32),
            key,
            () if self.looks is None else jnp.zeros((2, 2)),
        )

    def step(
        self, problem: Problem, batch: PyTree, mask: jax.Array, state: DPSGDState
    ) -> tuple[DPSGDState, DPSGDInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        gradients_of = optional(problem, "factored_gradients") or problem.per_example_gradients
        gradients = functools.partial(gradients_of, state.params)
        return self.descend(problem, gradients, batch, mask, state)

    def descend(
        self,
        problem: Problem,
        gradients: Callable[[PyTree], PyTree],
        batch: PyTree,
        mask: jax.Array,
        state: DPSGDState,
    ) -> tuple[DPSGDState, DPSGDInfo]:
        """A step along given per-example gradients: clip, sum, noise, optimizer, average."""
        length = self._length(state)
        clip_norm = self._clip_norm(length)
        noise, clip = self.make_noise(), clip_by_norm(clip_norm)
        if length is not None:
            both = self._numbers_of_looks
            looking, narrow = state.count < both.sum(), state.count >= both[0]
            near = jnp.where(narrow, self._typical(state.measured[0], both[0]), 0)
            clip = clip_or_measure(clip_norm, looking, near)
            noise = add_gaussian(self.noise_multiplier * clip.sensitivity("add_or_remove_one"))
        total = microbatched_sum(gradients, clip, batch, mask, size=self.microbatch_size)
        like = state.params if length is None else (state.params, jnp.zeros(2))
        # a sum of factored gradients may have an axis of one that the parameters have not
        total = jax.tree.map(lambda g, p: g.reshape(p.shape), total, like)
        noisy, noise_state = noised_sum(
            noise, total, state.noise, rows=mask.shape[0], key=state.key
        )
        more: PyTree = ()
        if length is not None:
            noisy, more = noisy
        mean = jax.tree.map(lambda g, p: (g / self.batch_size).astype(p.dtype), noisy, state.params)
        updates, opt_state = self.optimizer.update(mean, state.opt_state, state.params)
        rate = self._rate(state.count, length, clip_norm)
        updates = jax.tree.map(lambda u: (rate * u).astype(u.dtype), updates)
        params = problem.project(optax.apply_updates(state.params, updates))
        norm, clipped = optax.tree.norm(mean), jnp.asarray(clip_norm, float)
        measured = state.measured
        if length is not None:
            looked = measured.at[narrow.astype(int)].add(more.astype(measured.dtype))
            kept = (state.params, state.opt_state, 0 * norm, 0 * clipped, looked)
            new = (params, opt_state, norm, clipped, measured)
            params, opt_state, norm, clipped, measured = jax.tree.map(
                functools.partial(jnp.where, looking), kept, new
            )
        count = state.count + 1
        average = update_average(self.average, state.average, params, count, self.decay)
        after = DPSGDState(params, opt_state, noise_state, average, count, state.key, measured)
        return after, DPSGDInfo(norm, clipped)

    def _length(self, state: DPSGDState) -> jax.Array | None:
        """What `clip_norm` is a multiple of; of looks so far."""
        if self.looks is None:
            return None
        return self._bounded(self._typical(state.measured, self._numbers_of_looks))

    @property
    def _numbers_of_looks(self) -> jax.Array:
        """Wide and narrow ones, `[2]`."""
        looks, narrow = jnp.asarray(self.looks, float), jnp.asarray(self.narrow_looks, float)
        return jnp.stack([looks - narrow, narrow])

    def _typical(self, measured: jax.Array, looks: jax.Array) -> jax.Array:
        expected = 1.0 if self.length_bound is None else self.length_bound
        records, stddev = looks * self.batch_size, looks**0.5 * self.noise_multiplier
        return typical_length(measured, records, stddev, expected)

    def _clip_norm(self, length: jax.Array | None) -> ArrayLike:
        if length is None:
            return self.clip_norm
        floor = jnp.minimum(jnp.asarray(self.clip_floor), _MOST_LENGTHS * length)
        return self._bounded(jnp.maximum(self.clip_norm * length, floor))

    def _bounded(self, length: jax.Array) -> jax.Array:
        bound = self.length_bound
        return length if bound is None else jnp.minimum(length, jnp.asarray(bound, length.dtype))

    def _rate(self, count: jax.Array, length: jax.Array | None, clip_norm: ArrayLike) -> ArrayLike:
        rate = self.learning_rate
        if length is not None and self.optimizer is SGD:
            curved = jnp.clip(length, *_CURVED) if self.length_bound is None else length
            rate = rate / (length if self.rate_power == 1 else length * curved)
            # a larger clip norm has more noise
            wanted = self._bounded(length * self.clip_norm)
            rate = rate * wanted / jnp.maximum(clip_norm, 1e-30)
        if self.schedule == "linear":
            rate = rate * jnp.maximum(0, 1 - count / self.sampler.steps)
        return rate

    def make_noise(self) -> Transform:
        """What is added to the sum of clipped gradients."""
        if defaults.is_correlated(self.noise):
            return correlated_noise(self.noise, self.noise_multiplier * self.clip_norm)
        clip = clip_by_norm(self.clip_norm)
        return add_gaussian(self.noise_multiplier * clip.sensitivity("add_or_remove_one"))

    def redact(self, state: DPSGDState) -> DPSGDState:
        """The state without buffers of correlated noise, with which noise could be subtracted."""
        return state._replace(noise=None) if defaults.is_correlated(self.noise) else state

    def finalize(self, problem: Problem, state: DPSGDState) -> PyTree:
        """The last or the averaged parameters."""
        return read_average(self.average, state.average, state.params, state.count, self.decay)

    def diagnose(
        self, problem: Problem, batch: PyTree, mask: jax.Array, state: DPSGDState
    ) -> dict[str, jax.Array]:
        """Raw values of a step, **not private**: batch size and share of clipped records."""
        gradients = problem.per_example_gradients(state.params, batch)
        clip_norm = self._clip_norm(self._length(state))
        return clipping_diagnostics(gradients, mask, clip_norm)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_multiplier")
        z = float(self.noise_multiplier)
        event = requests.event_of_run(self.sampler, self.noise, z, self.relation)
        return Guarantee(event, self.relation, self.sampler.failure_probability())


def clipping_diagnostics(
    gradients: PyTree, mask: jax.Array, clip_norm: ArrayLike
) -> dict[str, jax.Array]:
    """Realised batch size and share of its records that clipping changed. **Not private**."""
    scale = clip_scale(gradients, mask, clip_norm, "l2")
    size = jnp.sum(mask)
    return {
        "batch_size": size,
        "clipped_fraction": jnp.sum(mask & (scale < 1)) / jnp.maximum(size, 1),
    }


def _single_pass(request: requests.Request, batch_size: float | None, steps: int | None) -> Sampler:
    """Batches in which each record has one step; the root of their number if none is asked for."""
    check_positive("batch_size", batch_size)
    n = request.num_records
    whole = math.isqrt(n) if batch_size is None else n // batch_size
    return request.one_pass(max(1, int(whole)) if steps is None else steps)
