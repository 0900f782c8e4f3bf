"""Linear logits, with per-example gradients in factored form."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax.core import PyTree, check_int
from dpjax.transforms import OuterProduct

# as on CPU, so that a model means the same wherever it was trained


@dataclass(frozen=True)
class LinearLogits:
    r"""$h(x) = x W + b$ with parameters `{"w": [p, K], "b": [K]}`.

    `pullback` gives the per-example gradients $x_b c_b^\top$ as factors, so that clipping costs one
    matrix product and never forms a `[B, p, K]` array.

    Attributes:
      num_features: p, length of a record's `x` (*public*).
      num_classes: K (*public*).

    Raises:
      TypeError: If a number is not an integer.
      ValueError: If `num_features < 1` or `num_classes < 2`.
    """

    num_features: int
    num_classes: int

    def __post_init__(self) -> None:
        check_int("num_features", self.num_features, minimum=1)
        check_int("num_classes", self.num_classes, minimum=2)

    def __call__(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Logits `[B, K]` of inputs `[B, p]`."""
        return jnp.matmul(x, params["w"], precision="highest") + params["b"][None]

    def init(self) -> PyTree:
        """Zero parameters, in the default float type."""
        return {
            "w": jnp.zeros((self.num_features, self.num_classes)),
            "b": jnp.zeros(self.num_classes),
        }

    def pullback(self, params: PyTree, x: jax.Array, cotangent: jax.Array) -> PyTree:
        """Per-example gradients of `cotangent[b] @ h(x[b])`, factored."""
        return {"w": OuterProduct(x, cotangent), "b": cotangent}
