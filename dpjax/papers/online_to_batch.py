"""Zhang, Tran and Cutkosky, "Differentially private online-to-batch for smooth losses", 2022.

The map to code is in `docs/papers.md`.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core import Problem, PyTree, Transform, check_positive
from dpjax.papers._log_delta import log_inverse_delta
from dpjax.papers.learners import parameter_free
from dpjax.papers.learners._constraint_reduction import ReductionState
from dpjax.papers.learners._norms import norm
from dpjax.papers.online._increment import IncrementBound
from dpjax.papers.online._learners import Learner
from dpjax.papers.online._online_to_batch import OnlineToBatch
from dpjax.papers.online._plan import Weights, estimate_degree
from dpjax.privacy import Budget, Guarantee
from dpjax.solvers._summary import register_solver
from dpjax.transforms import BinaryTree
from dpjax.transforms.learners._learner import plus, ratio


@register_solver
@dataclass(frozen=True)
class PublishedOnlineToBatch(OnlineToBatch):
    r"""`OnlineToBatch` with the noise as printed: more than its guarantee needs.

    Nodes of the tree have the deviation

    $$ \frac{2 (k + 1)}{\rho}\, t^{k - 1} \bigl(G + H \max_{i \le t} \|w_i - x_{i-1}\|\bigr)
       \sqrt{\log_2 2T}, $$

    from the triangle inequality and the largest distance so far, with $\rho = 2 / z$ and z the
    `noise_multiplier`.

    Guarantee: as `OnlineToBatch`, of the tree's true height: one Gaussian of multiplier
    $z \sqrt{\log_2(2T) / h}$ with h the number of binary digits of T.

    Attributes:
      noise: A `BinaryTree`.
      clip: `"plain"`.
      estimate_exponent: None, or the same as `weight_exponent`.

    Raises:
      ValueError: As `OnlineToBatch`, and if one of these three is something else.

    Source: Zhang, Tran and Cutkosky, 2022, algorithm 1 and theorem 4.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.noise, BinaryTree) and self.clip == "plain"):
            raise ValueError(
                "the published noise needs noise=BinaryTree and clip='plain', "
                f"got {self.noise!r} and {self.clip!r}"
            )
        if estimate_degree(self) != self.weight_exponent:
            raise ValueError(
                f"estimate_exponent must be weight_exponent = {self.weight_exponent!r} with the "
                f"published noise, which is made for these, got {self.estimate_exponent!r}"
            )

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host)."""
        stated = super().guarantee()
        event = self.noise.event(float(self.noise_multiplier) * self._excess, self.relation)
        return dataclasses.replace(stated, event=event)

    @property
    def _excess(self) -> float:
        """How much more noise the nodes have than the height of the tree asks for."""
        return math.sqrt(math.log2(2 * self.sampler.steps) / self.sampler.steps.bit_length())

    def _record_bound(
        self, bound: IncrementBound, weights: Weights, reach: jax.Array, count: jax.Array
    ) -> jax.Array:
        del bound
        slope = (self.weight_exponent + 1) * weights.estimate / (count + 1)
        largest = jnp.maximum(self.clip_norm, 0) + jnp.maximum(self.smoothness, 0) * reach
        return self._excess * slope * largest


def as_published(
    problem: Problem,
    num_records: int,
    budget: Budget,
    *,
    learner: str | Learner = "auto",
    steps: int | None = None,
    **overrides: Any,
) -> PublishedOnlineToBatch:
    r"""One pass with noise, clipping, weights and learner as printed.

    Guarantee: that of `PublishedOnlineToBatch`, with $\epsilon = 2 \rho \sqrt{\ln(1/\delta)}$ as
    printed. That conversion holds for small $\rho$ alone, so it is checked; the true epsilon,
    `guarantee().epsilon(delta)`, is mostly below 0.8 of the budget's.

    Args:
      problem: As in `OnlineToBatch.for_budget`.
      num_records: *Public* bound on the number of records.
      budget: epsilon, delta > 0 and relation, replace-one by default.
      learner: `"auto"` is `"adagrad_norm"`, or `"optimistic_exponentiated"` on simplices and l1
        balls.
      steps: Default: as many as records.
      **overrides: Other fields.

    Returns:
      The solver.

    Raises:
      ValueError: If a value is outside its bound, or the printed noise does not meet the budget.
      TypeError: If an override is no field.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> from dpjax.papers import online_to_batch
      >>> problem = dpjax.problems.Risk(
      ...     loss=lambda w, rec: (rec["x"] @ w - rec["y"]) ** 2 / 2,
      ...     init=jnp.zeros(3), radius=1.0)
      >>> solver = online_to_batch.as_published(problem, 100, dpjax.Budget(1.0, 1e-5))
      >>> solver.guarantee().epsilon(1e-5) < 0.8
      True

    Source: Zhang, Tran and Cutkosky, 2022, algorithm 1 and theorem 4.
    """
    if learner == "auto" and not hasattr(problem, "domains"):
        learner = "adagrad_norm"
    steps = num_records if steps is None else steps
    if "sampler" in overrides:
        steps = overrides["sampler"].steps
    else:
        overrides["steps"] = steps
    made_for = {"clip": "plain", "weight_exponent": 1.0, "noise": BinaryTree(steps)}
    printed = {"noise_multiplier": 2 / _published_rho(budget)}
    solver = PublishedOnlineToBatch.for_budget(
        problem,
        num_records,
        budget,
        learner=learner,
        single_pass=True,
        **(made_for | printed | overrides),
    )
    true = solver.noise.event(2 / _published_rho(budget), solver.relation)
    failure = solver.sampler.failure_probability()
    epsilon = Guarantee(true, solver.relation, failure).epsilon(budget.delta)
    if "noise_multiplier" not in overrides and epsilon > budget.epsilon:
        raise ValueError(
            f"epsilon must be smaller as published, got {budget.epsilon!r} at delta = "
            f"{budget.delta!r}: the published noise has a true epsilon of {epsilon:.4g}"
        )
    return solver


def _published_rho(budget: Budget) -> float:
    """By epsilon = 2 rho sqrt(log(1 / delta))."""
    return budget.epsilon / (2 * math.sqrt(log_inverse_delta(budget)))


def optimistic(
    problem: Problem, num_records: int, budget: Budget, *, steps: int | None = None
) -> PublishedOnlineToBatch:
    """Theorem 6: `as_published` with optimistic dual averaging, whose hints are past estimates.

    Guarantee: as `as_published`.

    Args:
      problem: As in `as_published`, as all that follow.
      num_records: *Public* bound on the number of records.
      budget: epsilon, delta > 0 and relation.
      steps: Default: as many as records.

    Returns:
      The solver.

    Raises:
      ValueError: As `as_published`.
    """
    return as_published(problem, num_records, budget, learner="optimistic", steps=steps)


def strongly_convex(
    problem: Problem,
    num_records: int,
    budget: Budget,
    *,
    strong_convexity: float,
    steps: int | None = None,
) -> PublishedOnlineToBatch:
    r"""Theorem 8: `as_published` with k = 2 and descent on $\mu$-strongly convex losses.

    The printed bound needs $k \ge 2$: with k = 1 its noise term has a factor $1 + \log T$ more.

    Guarantee: as `as_published`.

    Args:
      problem: As in `as_published`.
      num_records: *Public* bound on the number of records.
      budget: epsilon, delta > 0 and relation.
      strong_convexity: mu `> 0` of the mean loss (*public*).
      steps: Default: as many as records.

    Returns:
      The solver.

    Raises:
      ValueError: As `as_published`, and if mu is not positive.
    """
    check_positive("strong_convexity", strong_convexity)
    return as_published(
        problem,
        num_records,
        budget,
        learner="strongly_convex",
        steps=steps,
        weight_exponent=2.0,
        learning_rate=1 / strong_convexity,
    )


@dataclass(frozen=True)
class PulledLearner:
    r"""FreeGrad on losses with the printed pull towards the start; a learner of `OnlineToBatch`.

    $$ \bar g_t = \hat g_t + \xi_t \frac{w_t - w_1}{\|w_t - w_1\|} + 2\nu_t (w_t - w_1), \qquad
       \xi_t = A G \Phi t^{5/2} + A' (G + DH) \Phi \frac{\log_2(2T)}{\rho} t^2, \qquad
       \nu_t = 28 A H \Phi t^{5/2} $$

    with $A = 8\sqrt2 C^2$, $A' = 8\sqrt d\,C^2$,
    $\Phi = \sqrt{\log(20 d T \log(2 \kappa T) / \gamma)}$ and $\kappa = 1 + DH/G$.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Attributes:
      diameter: D (*public*).
      failure_probability: $\gamma$, with which the bound may fail.
      constant: C, which is not printed: an unspecified universal constant.
    """

    diameter: float
    failure_probability: float
    constant: float

    def pulls(self, solver: OnlineToBatch, dim: int) -> tuple[jax.Array, ...]:
        r"""$AG\Phi$, the factor of $t^2$, that of $\nu_t$, and the bound on $\|\bar g_T\|$."""
        steps, rho = solver.sampler.steps, 2 / solver.noise_multiplier
        slope, bend = solver.clip_norm, solver.smoothness
        reach = slope + self.diameter * bend
        inner = 20 * dim * steps * jnp.log(2 * reach / slope * steps) / self.failure_probability
        size = jnp.sqrt(jnp.log(inner)) * self.constant**2
        often = 8 * math.sqrt(2) * size
        noise = 8 * math.sqrt(dim) * size * reach * math.log2(2 * steps) / rho
        longest = (
            slope * steps**3
            + often * (2 * slope + 57 * self.diameter * bend) * steps**2.5
            + 2 * noise * steps**2
        )
        return often * slope, noise, 28 * often * bend, longest

    def __call__(self, solver: OnlineToBatch, problem: Problem) -> Transform:
        """The transformation, for gradients in units of $T^3$."""
        often, noise, bend, longest = self.pulls(solver, problem.num_params)
        unit = float(solver.sampler.steps) ** 3
        base = parameter_free(solver.learning_rate, longest / unit, problem.project)

        def update(
            updates: PyTree, state: ReductionState, params: PyTree = None, **extra: object
        ) -> tuple[PyTree, ReductionState]:
            gap = plus(state.point, state.anchor, -1.0)
            length = norm(gap)
            time = (state.count + 1).astype(length.dtype)
            pull = ratio((often * time**2.5 + noise * time**2) / unit, length)
            pulled = plus(updates, gap, pull + 2 * bend * time**2.5 / unit)
            return base.update(pulled, state, params, **extra)

        return Transform(base.init, update)


def parameter_free_pulled(
    problem: Problem,
    num_records: int,
    budget: Budget,
    *,
    diameter: float,
    failure_probability: float = 0.05,
    constant: float = 1.0,
    initial_scale: float = 0.1,
    steps: int | None = None,
) -> PublishedOnlineToBatch:
    """Theorem 11: `as_published` with k = 3 and a learner that needs no step size.

    With the constant that is not printed set to 1 the pull exceeds the gradients many times over:
    A Phi alone is about 50. It is here for comparison.

    Guarantee: as `as_published`.

    Args:
      problem: As in `as_published`.
      num_records: *Public* bound on the number of records.
      budget: epsilon, delta > 0 and relation.
      diameter: D of the set (*public*), for the size of the pull alone.
      failure_probability: With which the printed bound may fail.
      constant: C.
      initial_scale: As in `parameter_free`.
      steps: Default: as many as records.

    Returns:
      The solver.

    Raises:
      ValueError: As `as_published`, and if a value is not positive.
    """
    for name, value in (
        ("diameter", diameter),
        ("failure_probability", failure_probability),
        ("constant", constant),
    ):
        check_positive(name, value)
    return as_published(
        problem,
        num_records,
        budget,
        learner=PulledLearner(diameter, failure_probability, constant),
        steps=steps,
        weight_exponent=3.0,
        learning_rate=initial_scale,
    )


def excess_bound(
    regret: float,
    *,
    steps: int,
    dim: int,
    rho: float,
    clip_norm: float,
    smoothness: float,
    diameter: float,
    weights: float = 1.0,
    strong_convexity: float | None = None,
) -> float:
    r"""Theorem 4's bound on the mean excess risk in l2, or theorem 8's.

    $$ \frac{(k+1) R}{T^{k+1}} + \sqrt2 (k+1)^2 D \Bigl(\frac{G + DH}{\sqrt T}
       + \frac{\sqrt{2d}\,(G + DH) \log_2 2T}{\rho T}\Bigr), \qquad
       \frac{(k+1) R}{T^{k+1}} + \frac{8(k+1)^3}{\mu} \Bigl(\frac{(G + DH)^2}{T}
       + \frac{2 d (G + DH)^2 \log_2^2 2T}{\rho^2 T^2}\Bigr) $$

    It holds for independent records, a convex set of diameter at most D, a convex mean loss
    ($\mu$-strongly convex in the second), records' gradients of norm at most G that are
    H-Lipschitz, and the noise of `PublishedOnlineToBatch`.

    Args:
      regret: R of the learner on the weighted estimates; theorem 6 bounds it for `optimistic`.
      steps: T.
      dim: d.
      rho: 2 over the noise multiplier.
      clip_norm: G.
      smoothness: H.
      diameter: D.
      weights: k, at least 1; at least 2 for strongly convex losses.
      strong_convexity: mu, or None for theorem 4.

    Returns:
      The bound.

    Raises:
      ValueError: If k is too small.

    Theory: docs/theory/accuracy.md, A8.
    """
    least = 1.0 if strong_convexity is None else 2.0
    if weights < least:
        raise ValueError(f"weights must be >= {least:g} for this bound, got {weights!r}")
    reach, degree = clip_norm + diameter * smoothness, weights + 1
    data = reach / math.sqrt(steps)
    noise = math.sqrt(2 * dim) * reach * math.log2(2 * steps) / (rho * steps)
    learned = degree * regret / steps**degree
    if strong_convexity is None:
        return learned + math.sqrt(2) * degree**2 * diameter * (data + noise)
    return learned + 8 * degree**3 / strong_convexity * (data**2 + noise**2)
