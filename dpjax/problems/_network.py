"""Logits of one record: linear ones, factored, and models of flax and equinox."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

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


@dataclass(frozen=True, eq=False)
class Network:
    """Logits of a model that is a callable tree, such as an equinox or `flax.nnx` module.

    Its arrays of floats are the parameters, which `init()` starts from; all other leaves, among
    them activation functions, stay as they are. The model is called on one record: nothing of a
    batch, so no batch normalisation. A `flax.linen` module keeps its parameters apart and needs
    none of this: its logits are `lambda params, x: module.apply(params, x)`.

    Attributes:
      model: `model(x)` gives the logits `[K]` of one record, or one logit of two classes.

    Raises:
      TypeError: If the model is no callable tree with arrays of floats.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> dot = jax.tree_util.Partial(lambda w, x: x @ w, jnp.ones((3, 2)))
      >>> network = dpjax.problems.Network(dot)
      >>> network(network.init(), jnp.ones(3)).tolist()
      [3.0, 3.0]
    """

    model: PyTree

    def __post_init__(self) -> None:
        if not callable(self.model) or not jax.tree.leaves(self.init()):
            raise TypeError(
                "model must be callable and a tree with arrays of floats, as modules of equinox "
                f"and flax.nnx are, got {type(self.model).__name__}"
            )

    def __call__(self, params: PyTree, x: PyTree) -> jax.Array:
        """Logits of one record."""
        logits: jax.Array = self.with_params(params)(x)
        return logits

    def init(self) -> PyTree:
        """The model with None for what is no parameter."""
        return jax.tree.map(lambda leaf: leaf if _is_parameter(leaf) else None, self.model)

    def with_params(self, params: PyTree) -> PyTree:
        """The model with these parameters, such as those of a solution."""
        own = iter(jax.tree.leaves(params))
        leaves, tree = jax.tree.flatten(self.model)
        mine = [next(own) if _is_parameter(leaf) else leaf for leaf in leaves]
        return jax.tree.unflatten(tree, mine)


def is_model(value: object) -> bool:
    """Whether this is a callable tree with arrays of floats."""
    return callable(value) and any(_is_parameter(leaf) for leaf in jax.tree.leaves(value))


def _is_parameter(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact)
