"""Zhang, Tran and Cutkosky, "Differentially private online-to-batch for smooth losses", 2022."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.privacy import Budget, Guarantee
from dpjax.solvers import OnlineToBatch
from dpjax.solvers._increment import IncrementBound
from dpjax.solvers._published import log_inverse_delta
from dpjax.solvers._summary import register_solver
from dpjax.solvers.online._learners import Learner
from dpjax.solvers.online._weights import Weights, estimate_degree
from dpjax.transforms import BinaryTree


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
      estimate_weights: None, or the same as `weights`.

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
        if estimate_degree(self) != self.weights:
            raise ValueError(
                f"estimate_weights must be weights = {self.weights!r} with the published noise, "
                f"which is made for these, got {self.estimate_weights!r}"
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
        slope = (self.weights + 1) * weights.estimate / (count + 1)
        largest = jnp.maximum(self.clip_norm, 0) + jnp.maximum(self.smoothness, 0) * reach
        return self._excess * slope * largest


def as_published(
    problem: Any,
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
      budget: epsilon, delta > 0 and relation, replace-one unless told otherwise.
      learner: `"auto"` is `"adagrad_norm"`, or `"optimistic_exponentiated"` on simplices and l1
        balls.
      steps: As many as records unless told otherwise.
      **overrides: Any other field.

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
    made_for = {"clip": "plain", "weights": 1.0, "noise": BinaryTree(steps)}
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
