"""Linear models whose bounds are chosen inside the budget."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.api import Tuned, tune
from dpjax.core import PyTree, check_positive, register_dataclass, static_field
from dpjax.privacy import Budget
from dpjax.problems import LinearModel
from dpjax.sampling import FullBatch
from dpjax.solvers import linear_model_solver


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ScaledLinear:
    """A linear-model solver that first divides features by its own bound on their norm.

    Guarantee: the solver's; `problem` brings each scaled record within its bounds.

    Attributes:
      solver: Solver of `problem`.
      scale: Divisor of the features, a number (*public*).
      problem: Problem in the scaled features; the one passed to the methods is ignored (static).
    """

    solver: Any
    scale: ArrayLike
    problem: LinearModel = static_field()

    @property
    def sampler(self) -> FullBatch:
        """All records, once."""
        return self.solver.sampler

    def init(self, problem: LinearModel, *, key: jax.Array) -> PyTree:
        """The solver's state."""
        return self.solver.init(self.problem, key=key)

    def step(
        self, problem: LinearModel, batch: PyTree, mask: jax.Array, state: PyTree
    ) -> tuple[PyTree, None]:
        """The solver's step on scaled features."""
        scaled = batch["x"] / jnp.asarray(self.scale, batch["x"].dtype)
        return self.solver.step(self.problem, batch | {"x": scaled}, mask, state)

    def finalize(self, problem: LinearModel, state: PyTree) -> jax.Array:
        """Weights of the unscaled features, then the intercept or 0, `[p + 1]`."""
        params = self.solver.finalize(self.problem, state)
        weights, rest = jnp.split(params, [self.problem.num_features])
        rest = rest if rest.size else jnp.zeros(1, params.dtype)
        return jnp.concatenate([weights / jnp.asarray(self.scale, params.dtype), rest])

    def guarantee(self) -> Any:
        """The solver's guarantee (host)."""
        return self.solver.guarantee()


def tuned_linear_model(
    link: str,
    data: dict[str, np.ndarray],
    budget: Budget,
    options: dict[str, Any],
    *,
    fit_intercept: bool,
    key: jax.Array,
) -> Tuned:
    """The winner of `dpjax.tune` over bounds on rows and parameters; `params` are `[p + 1]`.

    Args:
      link: Of `LinearModel`.
      data: `x` `[n, p]` and `y` `[n]` float32 (*secret*).
      budget: Of the total.
      options: Arguments of `dpjax.tune`; candidates are values of `data_norm` and `radius`.
      fit_intercept: Whether there is one.
      key: Typed key (*secret*).
    """
    dim = data["x"].shape[1]

    def make(_: object, num_records: int, budget: Budget, **bounds: float | None) -> ScaledLinear:
        data_norm, radius = bounds.pop("data_norm", None), bounds.pop("radius", None)
        if bounds:
            raise TypeError(f"tune can choose data_norm and radius, got {min(bounds)!r}")
        if data_norm is None:
            raise TypeError("tune needs data_norm: among its candidates, or of the estimator")
        check_positive("data_norm", data_norm)
        own = LinearModel(link, dim, radius, intercept=1.0 if fit_intercept else None)
        return ScaledLinear(linear_model_solver(own, num_records, budget), data_norm, own)

    def correct(params: jax.Array, records: PyTree) -> jax.Array:
        margins = jnp.nan_to_num(records["x"] @ params[:dim] + params[dim])
        if link == "logistic":
            return (margins > 0) == (records["y"] > 0)
        return 1 - jnp.sqrt(jnp.abs(margins - records["y"]))  # small residuals count too

    outer = LinearModel("logistic" if link == "logistic" else "huber", dim, intercept=1.0)
    rest = {"correct": correct} | options
    return tune(rest.pop("candidates"), make, outer, data, budget, key=key, **rest)
