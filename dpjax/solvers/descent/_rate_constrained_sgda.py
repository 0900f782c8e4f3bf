"""Private stochastic gradient descent-ascent under rate constraints."""

import dataclasses
import importlib
import math
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Sampler,
    check_between,
    check_fields,
    check_positive,
    check_probability,
    check_shape,
    check_unstacked,
    derived,
    is_traced,
    static_field,
)
from dpjax.core._moved import moved_setting
from dpjax.privacy import Budget, Guarantee, joint_release
from dpjax.privacy._budget import relation_factor
from dpjax.problems import RateConstrained
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.descent import _rates as tables
from dpjax.solvers.descent._dpsgd import DPSGD, clipping_diagnostics
from dpjax.solvers.descent._dpsgd_defaults import fall_by_default, with_defaults
from dpjax.solvers.descent._sgda_state import SGDAInfo, SGDAState
from dpjax.transforms import AddNoiseState
from dpjax.transforms.noise import _noisy_counts as counting

_COUNTED = "histogram_noise", "count_noise", "part_counts"


@register_solver
@dataclasses.dataclass(frozen=True)
class RateConstrainedSGDA:
    r"""Descends in the parameters and ascends in one multiplier a constraint (RaCO-DP).

    Each step draws one batch, releases the noisy table $\hat H$ of its predictions by part, weights
    the records' gradients by the multipliers, and moves these by the rates in the table:

    $$ g = \frac1m \Big( \sum_{i \in B} \mathrm{clip}_C\big(\nabla [\ell_i + m \langle U_{q_i},
       \sigma_\tau(h(\theta; x_i)) \rangle]\big) + z C\, \mathcal N \Big), \quad
       \lambda \leftarrow \Pi_\Lambda(\lambda + \eta_\lambda (\hat\Gamma - \gamma)) $$

    U is made of $\Pi_\Lambda(\lambda + \kappa (\hat\Gamma - \gamma))$: adding the violation just
    seen damps the swings of multipliers that are sums of violations. The estimate of $\Gamma$ is
    linear in the table, around rates and sizes remembered of earlier ones, so that noise in a small
    group averages out and biases no multiplier; the dual step is such that a multiplier gathers a
    stated noise over the run. With `adaptive_clip` C is
    $\max(C, m \tau \max_q (\max_k U_{qk} - \min_k U_{qk}))$, so that clipping does not cut first
    what enforces a constraint. `resolution` says what gaps the noise leaves visible.

    Guarantee: one record changes the table by at most 1 in l1 and l2 (its prediction row is a
    probability vector, in one part) and the clipped sum by at most C in l2, under
    add-or-remove-one. Both come from **one** batch and are accounted jointly: with a Gaussian table
    the event is `PoissonSampled(rate, Gaussian(z_eff))`, $z_{eff}^{-2} = z_h^{-2} + z^{-2}$, with a
    Laplace table `PoissonSampled(rate, Composed[Laplace, Gaussian])`, composed over the steps.
    `denominator="fixed"` adds one `GaussianDpEvent(count_noise)` for the counts of the parts.
    Counts, those and hard tables, have Gaussian noise rounded to integers, with every sampler; the
    distance of its draws is declared as failure probability, for each count that a record may move
    (one a step, two under replace-one, whoever else is in the batch). The noise of other tables is
    that of `add_gaussian` or `add_laplace`, on their grid. Soft rates are cut towards zero to
    multiples of B / 2^24 for B slots of a batch, B up to a power of two, so that their float32 sums
    are exact in any order.
    Parameters, multipliers and averages are post-processing; so are weights and clip norm of a
    step, functions of its table and earlier ones, which are released before its sum: two Gaussians
    in turn on one batch are the pair above. The noise is z times the clip norm of that step.
    Protects all of a record, its group and label included.

    | input | effect |
    | --- | --- |
    | empty batch, empty part | mean sizes are at their floor or above; all outputs finite |
    | noisy sizes below the floor, or negative | the floor is used |
    | NaN or inf record, label out of range | contributes nothing to table and sum |
    | part id out of range | contributes to the loss alone |
    | J = 0 | no table is released: DPSGD, exactly |

    Attributes (data may be swept under `vmap`; all *public*):
      primal: The descent, with clip norm, noise multiplier, sampler, averaging (data).
      dual_learning_rate: eta_lambda, scalar or `[J]`; None for 0.15, or less where a multiplier
        would gather noise of more than 0.5 over the run (data).
      proportional_gain: kappa, scalar or `[J]`; None for 1, or less where the noise of one table
        would move a multiplier by more than 0.35; 0 as printed (data).
      histogram_noise: standard deviation (Gaussian) or scale (Laplace) on each cell (data).
      temperature: tau of the soft rates in the gradient, scalar (data).
      multiplier_bound: lambda_max of the box, or radius of the l1 set, scalar (data).
      size_floor: least size of a subset in a batch, scalar or `[S]`; None for `max(1, m / 50)`, of
        `estimator="ratio"` for `max(1, 2 std sqrt(K |I_s|))`, std the cells' noise (data).
      size_decay: scalar decay of the running mean of sizes with `denominator="ema"`; None weights
        all steps so far equally (data).
      part_counts: public counts of the parts `[Q]` for `denominator="fixed"`; None to release
        noisy ones (data).
      count_noise: standard deviation of the noisy part counts, scalar (data).
      noise_step: Most that the noise of a step may move the parameters, scalar, in the l2 norm,
        whatever the clip norm; None for no bound but `primal.learning_rate` (data).
      swing_bound: Most standard deviation of rates between steps, scalar, beyond which the learning
        rate is halved, after the first quarter of the run; None for no such rule (data).
      histogram: `"gaussian"`, `"laplace"` or `"none"` (only for J = 0) (static).
      rates: `"hard"` counts argmax predictions in the table, `"soft"` the tempered softmax
        (static).
      denominator: `None`: mean sizes of all tables so far; `"fixed"`: rate times one count of the
        data; `"batch"`: sizes from this step's noisy table, and `"ema"`: from the mean of all so
        far, both with ratios (static).
      multiplier_set: `"box"`, `"orthant"` or `"l1"` (static).
      estimator: `"control"`, as above, or `"ratio"`: noisy counts over noisy sizes, held to [0, 1],
        as printed, whose bias in small groups can hide or feign a violation; None for what the
        denominator needs (static).
      adaptive_clip: Whether the clip norm follows the multipliers (static).

    A fixed clip norm can put a tight constraint out of reach, whatever the noise: it cuts the
    gradients of the records that would enforce it first. Multipliers that end at their bound are
    warned of (`MultiplierWarning`), unless the run is under a transformation; so are rates that
    swing to the end.

    Raises:
      TypeError: If `primal` has correlated noise.
      ValueError: If a value is outside its bound; the message names both.

    Source: Yaghini, Cebere, Menart, Bellet and Papernot, "Private rate-constrained optimization
    with applications to fair learning", 2025 (RaCO-DP); privacy and denominators are re-derived
    here, since the printed accounting amplifies two releases of one batch separately. The gain:
    Sohrabi et al. 2024, "On PI controllers for updating Lagrange multipliers".
    """

    primal: DPSGD
    dual_learning_rate: ArrayLike | None
    histogram_noise: Any
    temperature: ArrayLike = 1.0
    multiplier_bound: ArrayLike = 10.0
    size_floor: ArrayLike | None = None
    size_decay: ArrayLike | None = None
    part_counts: ArrayLike | None = None
    count_noise: float | jax.Array = 50.0
    histogram: str = static_field(default="gaussian")
    rates: str = static_field(default="hard")
    denominator: str | None = static_field(default=None)
    multiplier_set: str = static_field(default="box")
    noise_step: ArrayLike | None = None
    estimator: str | None = static_field(default=None)
    adaptive_clip: bool = static_field(default=False)
    proportional_gain: ArrayLike | None = None
    swing_bound: ArrayLike | None = None

    def __post_init__(self) -> None:
        if self.primal.noise is not None or self.primal.looks is not None:
            raise TypeError(
                "primal must be a DPSGD with independent noise, which the joint event is made for, "
                f"and without looks, got a {type(self.primal).__name__} with {self.primal.noise!r} "
                f"and {self.primal.looks} looks"
            )
        requests.check_values(
            self,
            positive=("temperature", "multiplier_bound", "size_floor", "noise_step", "swing_bound"),
            nonnegative=("dual_learning_rate", "proportional_gain", *_COUNTED),
            histogram=tables.HISTOGRAMS,
            rates=("hard", "soft"),
            denominator=(None, "batch", "ema", "fixed"),
            multiplier_set=tables.MULTIPLIER_SETS,
            estimator=(None, "control", "ratio"),
        )
        check_between("size_decay", self.size_decay, 0, 1)
        if self.estimator == "control" and self.denominator in ("batch", "ema"):
            raise ValueError(
                f'denominator must be None or "fixed" with estimator="control", got '
                f"{self.denominator!r}: its sizes are those of ratios"
            )

    @classmethod
    def for_budget(
        cls,
        problem: RateConstrained,
        num_records: int,
        budget: Budget,
        *,
        sampler: Sampler | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        histogram_share: float | None = None,
        **overrides: Any,
    ) -> "RateConstrainedSGDA":
        """A solver with defaults that train, its noise calibrated jointly to `budget`.

        Args:
          problem: A `RateConstrained` problem; only its public sizes are used.
          num_records: *Public* bound on the number of records, and nominal size.
          budget: epsilon, delta and relation to meet; at infinite epsilon the same method without
            noise or clipping, on all records in each of 3000 steps.
          sampler: Which records enter each step; default: Poisson, `batch_size / num_records`.
          batch_size: Expected records a batch; default from `num_records`.
          steps: Number of steps; default 1000, or 500 or 250 where the noise of a step is large.
          histogram_share: Share of the precision that the table takes, in (0, 1); default 0.1, or
            0.2 of fewer than 1000 steps.
          **overrides: Other fields of this class or of `DPSGD`. All as printed is
            `dpjax.papers.rate_constrained.rate_constrained_sgda`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If an override is no field.

        Example:
          >>> import dpjax
          >>> parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
          >>> problem = dpjax.problems.RateConstrained.linear(5, 2, parity)
          >>> solver = dpjax.solvers.RateConstrainedSGDA.for_budget(
          ...     problem, num_records=10_000, budget=dpjax.Budget(1.0, 1e-5), steps=200)
          >>> solver.guarantee().epsilon(1e-5) <= 1.0
          True
        """
        if overrides.pop("as_published", False):
            given = {"batch_size": batch_size, "steps": steps}
            if histogram_share is not None:
                given["histogram_share"] = histogram_share
            name = "rate_constrained_sgda"
            printed = moved_setting("rate_constrained", name, "as_published=True")
            return printed(problem, num_records, budget, sampler=sampler, **given, **overrides)
        if isinstance(budget, Budget) and math.isinf(budget.epsilon):
            sampler = FullBatch(3000 if steps is None else steps) if sampler is None else sampler
            without = {"noise_multiplier": 0.0, "histogram_noise": 0.0, "clip_norm": 1e6}
            overrides = without | overrides
        shortened = sampler is None and steps is None and problem.num_constraints > 0
        if sampler is None:
            sampler = requests.default_sampler(num_records, batch_size, steps, budget)
        request = requests.requested(num_records, budget, sampler=sampler)
        if shortened:
            steps = tables.default_steps(request, sampler, problem)
            sampler = requests.default_sampler(num_records, batch_size, steps, budget)
        if histogram_share is None:
            histogram_share = tables.default_share(sampler.steps)
        check_probability("histogram_share", histogram_share)
        own_names = {f.name for f in dataclasses.fields(cls)} - {"primal"}
        own = {name: overrides.pop(name) for name in own_names & set(overrides)}
        not_its = {"sampler", "relation", "noise", "looks", "rate_power"}
        descent = {f.name for f in dataclasses.fields(DPSGD)} - not_its
        check_fields(cls, overrides, own_names | descent)
        if problem.num_constraints == 0:
            own.setdefault("histogram", "none")
            fall_by_default(overrides)
        else:
            if sampler.steps < 1000:
                overrides.setdefault("decay", max(0.0, 1 - 3 / sampler.steps))
            own.setdefault("adaptive_clip", "clip_norm" not in overrides)
            own.setdefault("noise_step", None if "learning_rate" in overrides else 0.3)
            own.setdefault("swing_bound", 0.03)

        def make(noise: float) -> "RateConstrainedSGDA":
            histogram = own.get("histogram", "gaussian")
            z_histogram, z_gradient = tables.split_noise(noise, histogram_share, histogram)
            primal = {"noise_multiplier": z_gradient} | overrides
            primal = with_defaults(DPSGD, primal, sampler, num_records, problem)
            descent = DPSGD(sampler, relation=request.relation, **primal)
            dual: dict[str, Any] = {"dual_learning_rate": None, "histogram_noise": z_histogram}
            return cls(descent, **dual | own)

        noise = 1.0
        if "histogram_noise" not in own or "noise_multiplier" not in overrides:
            noise = request.noise_multiplier(
                lambda z: make(z)._event(),
                sampler.failure_probability() + sum(make(1.0)._moved()) * counting.MOST_SHORTFALL,
            )
        solver = requests.checked_gradients(make(noise), problem, num_records)
        if problem.num_constraints and not is_traced(problem.constraints.slack):
            tables.check_resolution(solver.resolution(problem), problem.constraints, solver.primal)
        return solver

    def resolution(self, problem: RateConstrained, shares: ArrayLike | None = None) -> np.ndarray:
        r"""How well the run can see each constraint: $\sigma_j / \sqrt T$, `[J]` (host).

        The standard deviation of the mean over the run of the estimates of $\Gamma_j$, of records
        that are half of a class. A constraint is met on the training data up to about twice that.

        Guarantee: none needed; a function of *public* numbers.

        Args:
          problem: A `RateConstrained` problem; only its public sizes are used.
          shares: *Public* guess of each subset's share of the records, `[S]` in (0, 1]; default its
            share of the parts.

        Returns:
          One number a constraint, in units of rates.

        Raises:
          ValueError: If shares are not positive, or of another shape.
        """
        constraints = problem.constraints
        if not problem.num_constraints:
            return np.zeros(0)
        shares = tables.equal_shares(constraints) if shares is None else shares
        check_positive("shares", shares)
        check_shape("shares", np.asarray(shares), (constraints.membership.shape[0],))
        sizes = jnp.asarray(self.primal.batch_size * np.asarray(shares), float)
        rates = jnp.full((len(sizes), constraints.num_classes), 1 / constraints.num_classes)
        deviation = tables.cell_deviation(self.histogram, self.histogram_noise)
        each = tables.value_deviation(constraints, sizes, rates, deviation)
        return np.asarray(each) / self.sampler.steps**0.5

    @property
    def sampler(self) -> Sampler:
        """Which records enter each step."""
        return self.primal.sampler

    expected_records = requests.records_in_full("batch_size")

    def init(self, problem: RateConstrained, *, key: jax.Array) -> SGDAState:
        """The state before the first step; the key (*secret*) is for the noise."""
        if problem.num_constraints and self.histogram == "none":
            raise ValueError(
                f'histogram="none" needs J = 0 constraints, got J = {problem.num_constraints}'
            )
        primal_key, dual_key = jax.random.split(key)
        memory = tables.RateMemory(jnp.zeros(0), jnp.zeros((0, 0)))
        if problem.num_constraints:
            memory = self._estimator().init(problem.constraints)
        return SGDAState(
            self.primal.init(problem, key=primal_key),
            jnp.zeros(problem.num_constraints),
            memory,
            AddNoiseState(jnp.zeros((), jnp.int32)),
            dual_key,
            tables.Swings.start(problem.num_constraints),
        )

    def prologue(self, problem: RateConstrained, data: PyTree, state: SGDAState) -> SGDAState:
        """With `denominator="fixed"`, sets the subset sizes of a batch, once."""
        if self.denominator != "fixed" or problem.num_constraints == 0:
            return state
        constraints = problem.constraints
        part = constraints.part(data)
        if self.part_counts is None:
            counts = jnp.sum(constraints.one_hot_parts(part, jnp.int32), axis=0)
            # position 0 of this key; the tables of the steps are drawn at position 1
            key = jax.random.fold_in(state.key, 0)
            counts = counting.noisy_counts(key, counts, self.count_noise, self._tables[1])
        else:
            counts = jnp.asarray(self.part_counts, float)
        rate = self.sampler.participation_rate(part.shape[0])
        sizes = jnp.matmul(constraints.membership, counts, precision="highest")
        return state._replace(memory=state.memory._replace(sizes=rate * sizes))

    def step(
        self, problem: RateConstrained, batch: PyTree, mask: jax.Array, state: SGDAState
    ) -> tuple[SGDAState, SGDAInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        if problem.num_constraints == 0:
            primal, info = self.primal.step(problem, batch, mask, state.primal)
            none = jnp.zeros(0)
            told = SGDAInfo(info.gradient_norm, none, none, none, none, none, info.clip_norm, none)
            return state._replace(primal=primal), told

        constraints, params = problem.constraints, state.primal.params
        logits, valid, table = tables.table_of(
            problem, params, batch, mask, self.rates, self.temperature
        )
        key = jax.random.fold_in(state.key, 1)
        noise = tables.table_noise(self.histogram, self.histogram_noise, self._tables[0])
        cells, noise_state = noise.update(table, state.noise, key=key)
        reading, weights, descent = self._weighted(problem, cells, state)
        cotangent = problem.cotangent(logits, batch, weights, self.temperature)
        cotangent = jnp.where(valid[:, None], cotangent, 0)

        def gradients(part: PyTree) -> PyTree:
            return problem.pullback(params, part["batch"], part["cotangent"], factored=True)

        both = {"batch": batch, "cotangent": cotangent}
        primal, info = descent.descend(problem, gradients, both, valid, state.primal)
        rate = self.dual_learning_rate
        if rate is None:
            rate = tables.dual_step(constraints, reading.deviation, self.sampler.steps)
        multipliers = self._moved_by(rate, state, reading, constraints.slack)
        swings = state.swings
        if self.swing_bound is not None:
            step, steps = state.primal.count, self.sampler.steps
            swings = swings.after(reading, multipliers > 0, self.swing_bound, step, steps)
        after = SGDAState(primal, multipliers, reading.memory, noise_state, state.key, swings)
        values = constraints.weighted(reading.rates)
        seen = reading.sizes, reading.rates, reading.deviation, info.clip_norm, reading.values
        return after, SGDAInfo(info.gradient_norm, multipliers, values, *seen)

    def finalize(self, problem: RateConstrained, state: SGDAState) -> PyTree:
        """The last or the averaged parameters; warns of constraints that were not enforced."""
        tables.check_multipliers(self.multiplier_set, state.multipliers, self.multiplier_bound)
        state.swings.check(self.swing_bound, state.multipliers > 0, self.sampler.steps)
        return self.primal.finalize(problem, state.primal)

    def diagnose(
        self, problem: RateConstrained, batch: PyTree, mask: jax.Array, state: SGDAState
    ) -> dict[str, jax.Array]:
        """Raw values of a step, **not private**: batch size, clipped share, mean loss.

        The clipped share is that of the whole gradient, with weights from the noiseless table.
        """
        if problem.num_constraints == 0:
            return self.primal.diagnose(problem, batch, mask, state.primal)
        params = state.primal.params
        logits, valid, table = tables.table_of(
            problem, params, batch, mask, self.rates, self.temperature
        )
        _, weights, descent = self._weighted(problem, table, state)
        cotangent = problem.cotangent(logits, batch, weights, self.temperature)
        cotangent = jnp.where(valid[:, None], cotangent, 0)
        gradients = problem.pullback(params, batch, cotangent)
        loss = jnp.where(valid, problem.losses(logits, batch["y"]), 0)
        return {
            **clipping_diagnostics(gradients, valid, descent.clip_norm),
            "loss": jnp.sum(loss) / jnp.maximum(jnp.sum(valid), 1),
        }

    def guarantee(self) -> Guarantee:
        """The guarantee of both releases jointly (host); raises ValueError for stacked fields."""
        check_unstacked(self, "histogram_noise", "count_noise")
        check_unstacked(self.primal, "noise_multiplier")
        noises = self.histogram_noise, self.count_noise
        each = (counting.noisy_counts_shortfall(float(noise)) for noise in noises)
        failure = sum(moved * one for moved, one in zip(self._moved(), each, strict=True))
        failure += self.sampler.failure_probability()
        return Guarantee(self._event(), self.primal.relation, failure)

    def _moved(self) -> tuple[int, int]:
        """How many cells of hard tables, in all steps, and noisy counts of parts a record moves.

        Noise on all others has one law anyhow, whatever the batch.
        """
        each = relation_factor(self.primal.relation)
        hard = self.histogram == "gaussian" and self.rates == "hard"
        counted = self.histogram != "none" and self.denominator == "fixed"
        steps = self.sampler.steps * hard
        return each * steps, each * (counted and self.part_counts is None)

    @derived
    def _tables(self) -> tuple[counting.CountTables | None, counting.CountTables | None]:
        cells, counts = self._moved()
        return (
            counting.count_tables(self.histogram_noise) if cells else None,
            counting.count_tables(self.count_noise) if counts else None,
        )

    def _moved_by(
        self, rate: ArrayLike, state: SGDAState, reading: tables.RateReading, slack: ArrayLike
    ) -> jax.Array:
        moved = state.multipliers + rate * (reading.values - slack)
        return tables.project_multipliers(self.multiplier_set, moved, self.multiplier_bound)

    def _weighted(
        self, problem: RateConstrained, cells: jax.Array, state: SGDAState
    ) -> tuple[tables.RateReading, jax.Array, DPSGD]:
        """Estimates from a table, the cell weights they give, and the descent of this step."""
        constraints, descent = problem.constraints, self.primal
        reading = self._estimator().read(constraints, cells, state.memory, state.primal.count + 1)
        gain = self.proportional_gain
        if gain is None:
            gain = tables.proportional_gain(constraints, reading.deviation)
        ahead = self._moved_by(gain, state, reading, constraints.slack)
        weights = descent.batch_size * constraints.cell_weights(ahead, reading.sizes)
        clip_norm, rate = descent.clip_norm, jnp.asarray(descent.learning_rate)
        # the clip norm, which scales the noise, and the rate are functions of released values alone
        if self.adaptive_clip:
            spread = jnp.max(jnp.max(weights, axis=1) - jnp.min(weights, axis=1))
            clip_norm = jnp.maximum(clip_norm, self.temperature * spread)
            if self.noise_step is not None:
                noise = descent.noise_multiplier * clip_norm * problem.num_params**0.5
                most = self.noise_step * descent.batch_size / jnp.where(noise > 0, noise, 1e-9)
                rate = jnp.minimum(rate, most)
        rate = rate * state.swings.scale
        descent = dataclasses.replace(descent, clip_norm=clip_norm, learning_rate=rate)
        return reading, weights, descent

    def _event(self) -> dp_accounting.DpEvent:
        released = {"gaussian": float(self.primal.noise_multiplier)}
        if self.histogram != "none":
            name = "laplace_scale" if self.histogram == "laplace" else "histogram_gaussian"
            released[name] = float(self.histogram_noise)
        event = self.sampler.event(joint_release(**released))
        if self._moved()[1]:
            counts = dp_accounting.GaussianDpEvent(float(self.count_noise))
            event = dp_accounting.ComposedDpEvent([event, counts])
        return event

    def _estimator(self) -> Any:
        deviation = tables.cell_deviation(self.histogram, self.histogram_noise)
        if self.estimator == "ratio" or self.denominator in ("batch", "ema"):
            kind = importlib.import_module("dpjax.papers.rate_constrained").Ratio
            return kind(deviation, self.denominator or "batch", self.size_floor, self.size_decay)
        fixed = self.denominator == "fixed"
        size, steps = self.primal.batch_size, self.sampler.steps
        return tables.ControlVariate(deviation, size, steps, fixed, self.size_floor)
