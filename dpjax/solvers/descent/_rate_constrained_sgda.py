"""Private stochastic gradient descent-ascent under rate constraints."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Sampler,
    Transform,
    check_between,
    check_choice,
    check_fields,
    check_nonnegative,
    check_positive,
    check_probability,
    check_unstacked,
    derived,
    static_field,
)
from dpjax.privacy import Budget, Guarantee, joint_release
from dpjax.privacy._relations import relation_factor
from dpjax.problems import RateConstrained
from dpjax.problems._constraints import RateConstraints
from dpjax.solvers._published import moved_setting
from dpjax.solvers._request import default_sampler, requested
from dpjax.solvers._summary import register_solver
from dpjax.solvers._swamped import checked_gradients
from dpjax.solvers.descent._dpsgd import (
    DPSGD,
    DPSGDState,
    clipping_diagnostics,
    with_defaults,
)
from dpjax.solvers.descent._dual import (
    DENOMINATORS,
    HISTOGRAMS,
    MULTIPLIER_SETS,
    cell_deviation,
    default_dual_learning_rate,
    default_size_floor,
    project_multipliers,
    running_mean,
    split_noise,
)
from dpjax.transforms import AddNoiseState, add_gaussian, add_laplace
from dpjax.transforms.noise._independent import noise_on_leaves
from dpjax.transforms.noise._noisy_counts import (
    MOST_SHORTFALL,
    CountTables,
    count_tables,
    noisy_counts,
    noisy_counts_shortfall,
)


class SGDAState(NamedTuple):
    """State of `RateConstrainedSGDA`; all of it but the keys is covered by the guarantee.

    Attributes:
      primal: State of the descent.
      multipliers: lambda, `[J]`.
      sizes: What is remembered of the subset sizes, `[S]`.
      noise: State of the noise of the tables.
      key: Key of that noise, `[]` (*secret*).
    """

    primal: DPSGDState
    multipliers: jax.Array
    sizes: jax.Array
    noise: AddNoiseState
    key: jax.Array


class SGDAInfo(NamedTuple):
    """Released values of a step.

    Attributes:
      gradient_norm: l2 norm of the noisy mean gradient, `[]`.
      multipliers: lambda after the step, `[J]`.
      constraint_values: the noisy estimate of Gamma, `[J]`.
    """

    gradient_norm: jax.Array
    multipliers: jax.Array
    constraint_values: jax.Array


@register_solver
@dataclass(frozen=True)
class RateConstrainedSGDA:
    r"""Descends in the parameters and ascends in one multiplier a constraint (RaCO-DP).

    Each step draws one batch, releases the noisy table $\hat H$ of its predictions by part, and
    from it sets the constraint weights $U$ of the records' gradients, and moves the multipliers:

    $$ g = \frac1m \Big( \sum_{i \in B} \mathrm{clip}_C\big(\nabla [\ell_i + m \langle U_{q_i},
       \sigma_\tau(h(\theta; x_i)) \rangle]\big) + z C\, \mathcal N \Big), \quad
       \lambda \leftarrow \Pi_\Lambda(\lambda + \eta_\lambda (\hat\Gamma - \gamma)) $$

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
    Parameters, multipliers and averages are post-processing. Protects all of a record, its group
    and label included.

    | input | effect |
    | --- | --- |
    | empty batch, empty part | sizes are at their floor; all outputs finite |
    | noisy sizes below the floor, or negative | the floor is used |
    | NaN or inf record, label out of range | contributes nothing to table and sum |
    | part id out of range | contributes to the loss alone |
    | J = 0 | no table is released: DPSGD, exactly |

    Attributes (data may be swept under `vmap`; all *public*):
      primal: The descent, with clip norm, noise multiplier, sampler, averaging (data).
      dual_learning_rate: eta_lambda, scalar (data).
      histogram_noise: standard deviation (Gaussian) or scale (Laplace) on each cell (data).
      temperature: tau of the soft rates in the gradient, scalar (data).
      multiplier_bound: lambda_max of the box, or radius of the l1 set, scalar (data).
      size_floor: d_min, scalar or `[S]`; None for `max(1, 2 std sqrt(K |I_s|))`, std the cells'
        noise (data).
      size_decay: scalar decay of the running mean of sizes with `denominator="ema"`; None weights
        all steps so far equally (data).
      part_counts: public counts of the parts `[Q]` for `denominator="fixed"`; None to release
        noisy ones (data).
      count_noise: standard deviation of the noisy part counts, scalar (data).
      histogram: `"gaussian"`, `"laplace"` or `"none"` (only for J = 0) (static).
      rates: `"hard"` counts argmax predictions in the table, `"soft"` the tempered softmax
        (static).
      denominator: `"batch"`: sizes from this step's noisy table; `"ema"`: from the mean of all so
        far; `"fixed"`: rate times one count of the data (static).
      multiplier_set: `"box"`, `"orthant"` or `"l1"` (static).

    Clipping can put a tight constraint out of reach, whatever the noise: it cuts the gradients of
    the records that would enforce it first. If multipliers grow to their bound, raise `clip_norm`.

    Raises:
      TypeError: If `primal` has correlated noise.
      ValueError: If a value is outside its bound; the message names both.

    Source: Yaghini, Cebere, Menart, Bellet and Papernot, "Private rate-constrained optimization
    with applications to fair learning", 2025 (RaCO-DP); privacy and denominators are re-derived
    here, since the printed accounting amplifies two releases of one batch separately.
    """

    primal: DPSGD
    dual_learning_rate: ArrayLike
    histogram_noise: Any
    temperature: ArrayLike = 1.0
    multiplier_bound: ArrayLike = 10.0
    size_floor: ArrayLike | None = None
    size_decay: ArrayLike | None = None
    part_counts: ArrayLike | None = None
    count_noise: float | jax.Array = 50.0
    histogram: str = static_field(default="gaussian")
    rates: str = static_field(default="hard")
    denominator: str = static_field(default="batch")
    multiplier_set: str = static_field(default="box")

    def __post_init__(self) -> None:
        if self.primal.noise is not None:
            raise TypeError(
                "primal must be a DPSGD with independent noise, which the joint event is made for, "
                f"got a {type(self.primal).__name__} with {self.primal.noise!r}"
            )
        for name in ("dual_learning_rate", "histogram_noise", "count_noise", "part_counts"):
            check_nonnegative(name, getattr(self, name))
        for name in ("temperature", "multiplier_bound", "size_floor"):
            check_positive(name, getattr(self, name))
        check_between("size_decay", self.size_decay, 0, 1)
        check_choice("histogram", self.histogram, HISTOGRAMS)
        check_choice("rates", self.rates, ("hard", "soft"))
        check_choice("denominator", self.denominator, DENOMINATORS)
        check_choice("multiplier_set", self.multiplier_set, MULTIPLIER_SETS)

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
        histogram_share: float = 0.1,
        **overrides: Any,
    ) -> "RateConstrainedSGDA":
        """A solver with defaults that train, its noise calibrated jointly to `budget`.

        Args:
          problem: A `RateConstrained` problem; only its public sizes are used.
          num_records: *Public* bound on the number of records, and nominal size.
          budget: epsilon, delta and relation to meet.
          sampler: Who takes part; default: Poisson at rate `batch_size / num_records`.
          batch_size: Expected records a batch; default from `num_records`.
          steps: Number of steps; default 1000.
          histogram_share: Share of the precision that the table takes, in (0, 1).
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
            given = {"batch_size": batch_size, "steps": steps, "histogram_share": histogram_share}
            name = "rate_constrained_sgda"
            printed = moved_setting("rate_constrained", name, "as_published=True")
            return printed(problem, num_records, budget, sampler=sampler, **given, **overrides)
        sampler = sampler or default_sampler(num_records, batch_size, steps)
        request = requested(num_records, budget, sampler=sampler)
        check_probability("histogram_share", histogram_share)
        own_names = {f.name for f in dataclasses.fields(cls)} - {"primal"}
        own = {name: overrides.pop(name) for name in own_names & set(overrides)}
        descent = {f.name for f in dataclasses.fields(DPSGD)} - {"sampler", "relation", "noise"}
        check_fields(cls, overrides, own_names | descent)
        if problem.num_constraints == 0:
            own.setdefault("histogram", "none")

        def make(noise: float) -> "RateConstrainedSGDA":
            z_histogram, z_gradient = split_noise(
                noise, histogram_share, own.get("histogram", "gaussian")
            )
            primal = with_defaults(
                DPSGD, {"noise_multiplier": z_gradient} | overrides, sampler, num_records, problem
            )
            descent = DPSGD(sampler, relation=request.relation, **primal)
            dual: dict[str, Any] = {"histogram_noise": z_histogram} | own
            if "dual_learning_rate" not in dual:
                parts = problem.constraints.part.num_parts if problem.num_constraints else 1
                deviation = cell_deviation(dual.get("histogram", ""), dual["histogram_noise"])
                dual["dual_learning_rate"] = default_dual_learning_rate(
                    deviation, parts, descent.batch_size
                )
            return cls(descent, **dual)

        noise = 1.0
        if "histogram_noise" not in own or "noise_multiplier" not in overrides:
            noise = request.noise_multiplier(
                lambda z: make(z)._event(),
                sampler.failure_probability() + sum(make(1.0)._moved()) * MOST_SHORTFALL,
            )
        return checked_gradients(make(noise), problem, num_records)

    @property
    def sampler(self) -> Sampler:
        """Who takes part in each step."""
        return self.primal.sampler

    def init(self, problem: RateConstrained, *, key: jax.Array) -> SGDAState:
        """The state before the first step; the key (*secret*) is for the noise."""
        if problem.num_constraints and self.histogram == "none":
            raise ValueError(
                f'histogram="none" needs J = 0 constraints, got J = {problem.num_constraints}'
            )
        primal_key, dual_key = jax.random.split(key)
        constraints = problem.constraints
        subsets = 0 if constraints is None else constraints.membership.shape[0]
        return SGDAState(
            self.primal.init(problem, key=primal_key),
            jnp.zeros(problem.num_constraints),
            jnp.zeros(subsets),
            AddNoiseState(jnp.zeros((), jnp.int32)),
            dual_key,
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
            counts = noisy_counts(key, counts, self.count_noise, self._tables[1])
        else:
            counts = jnp.asarray(self.part_counts, float)
        rate = self.sampler.participation_rate(part.shape[0])
        sizes = jnp.matmul(constraints.membership, counts, precision=jax.lax.Precision.HIGHEST)
        return state._replace(sizes=rate * sizes)

    def step(
        self, problem: RateConstrained, batch: PyTree, mask: jax.Array, state: SGDAState
    ) -> tuple[SGDAState, SGDAInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        if problem.num_constraints == 0:
            primal, info = self.primal.step(problem, batch, mask, state.primal)
            nothing = jnp.zeros(0)
            return state._replace(primal=primal), SGDAInfo(info.gradient_norm, nothing, nothing)

        constraints, params = problem.constraints, state.primal.params
        logits, valid, table = self._table(problem, params, batch, mask)
        key = jax.random.fold_in(state.key, 1)
        cells, noise = self._add_noise().update(table, state.noise, key=key)
        memory, sizes = self._sizes(constraints, cells, state)
        weights = constraints.cell_weights(state.multipliers, sizes)
        cotangent = self._cotangent(problem, logits, valid, batch, weights)

        def gradients(part: PyTree) -> PyTree:
            return problem.pullback(params, part["batch"], part["cotangent"])

        primal, info = self.primal.descend(
            problem, gradients, {"batch": batch, "cotangent": cotangent}, valid, state.primal
        )
        values = constraints.values(cells, sizes)
        step = self.dual_learning_rate * (values - constraints.slack)
        multipliers = project_multipliers(
            self.multiplier_set, state.multipliers + step, self.multiplier_bound
        )
        after = SGDAState(primal, multipliers, memory, noise, state.key)
        return after, SGDAInfo(info.gradient_norm, multipliers, values)

    def finalize(self, problem: RateConstrained, state: SGDAState) -> PyTree:
        """The last or the averaged parameters."""
        return self.primal.finalize(problem, state.primal)

    def diagnose(
        self, problem: RateConstrained, batch: PyTree, mask: jax.Array, state: SGDAState
    ) -> dict[str, jax.Array]:
        """Raw values of a step, **not private**: batch size, clipped share, mean loss.

        The clipped share is that of the whole gradient, with weights from the noiseless table.
        """
        if problem.num_constraints == 0:
            return self.primal.diagnose(problem, batch, mask, state.primal)
        constraints, params = problem.constraints, state.primal.params
        logits, valid, table = self._table(problem, params, batch, mask)
        _, sizes = self._sizes(constraints, table, state)
        weights = constraints.cell_weights(state.multipliers, sizes)
        cotangent = self._cotangent(problem, logits, valid, batch, weights)
        gradients = problem.pullback(params, batch, cotangent)
        loss = jnp.where(valid, problem.loss(logits, batch["y"]), 0)
        return {
            **clipping_diagnostics(gradients, valid, self.primal.clip_norm),
            "loss": jnp.sum(loss) / jnp.maximum(jnp.sum(valid), 1),
        }

    def guarantee(self) -> Guarantee:
        """The guarantee of both releases jointly (host); raises ValueError for stacked fields."""
        check_unstacked(self, "histogram_noise", "count_noise")
        check_unstacked(self.primal, "noise_multiplier")
        noises = self.histogram_noise, self.count_noise
        each = (noisy_counts_shortfall(float(noise)) for noise in noises)
        failure = sum(moved * one for moved, one in zip(self._moved(), each, strict=True))
        total = self.sampler.failure_probability() + failure
        return Guarantee(self._event(), self.primal.relation, total)

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
    def _tables(self) -> tuple[CountTables | None, CountTables | None]:
        cells, counts = self._moved()
        return (
            count_tables(self.histogram_noise) if cells else None,
            count_tables(self.count_noise) if counts else None,
        )

    def _add_noise(self) -> Transform:
        """The noise of a table."""
        noise, tables = self.histogram_noise, self._tables[0]
        if not self._moved()[0]:
            return add_laplace(noise) if self.histogram == "laplace" else add_gaussian(noise)
        return noise_on_leaves(
            lambda table, key: noisy_counts(key, table.astype(jnp.int32), noise, tables)
        )

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

    def _table(
        self, problem: RateConstrained, params: PyTree, batch: PyTree, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Logits, which records count, and the noiseless table `[Q, K]`."""
        logits = problem.logits(params, batch["x"])
        valid = mask & problem.valid(logits, batch)
        rates = problem.rates(logits, temperature=self.temperature, hard=self.rates == "hard")
        rates = jnp.where(valid[:, None], rates.astype(jnp.promote_types(rates.dtype, float)), 0)
        if self.rates == "soft":
            rates = _summable(rates)
        constraints = problem.constraints
        return logits, valid, constraints.tabulate(rates, constraints.part(batch))

    def _cotangent(
        self,
        problem: RateConstrained,
        logits: jax.Array,
        valid: jax.Array,
        batch: PyTree,
        weights: jax.Array,
    ) -> jax.Array:
        """Gradient of each record's Lagrangian in its logits, in units of m, `[B, K]`."""
        weights = self.primal.batch_size * weights
        cotangent = problem.cotangent(logits, batch, weights, self.temperature)
        return jnp.where(valid[:, None], cotangent, 0)

    def _sizes(
        self, constraints: RateConstraints, cells: jax.Array, state: SGDAState
    ) -> tuple[jax.Array, jax.Array]:
        """What to remember of the sizes, and this step's sizes `[S]`, at their floor or above."""
        memory = state.sizes
        if self.denominator == "batch":
            memory = constraints.counts(cells)
        elif self.denominator == "ema":
            count = state.primal.count + 1
            memory = running_mean(memory, constraints.counts(cells), count, self.size_decay)
        floor = self.size_floor
        if floor is None:
            deviation = cell_deviation(self.histogram, self.histogram_noise)
            floor = default_size_floor(deviation, constraints.membership, cells.shape[1])
        return memory, jnp.maximum(memory, floor)


def _summable(rates: jax.Array) -> jax.Array:
    """Rates `[B, K]` cut towards zero so far that their sums over B are exact, in any order."""
    unit = 2.0 ** ((rates.shape[0] - 1).bit_length() - jnp.finfo(rates.dtype).nmant - 1)
    return jnp.floor(rates / unit) * unit
