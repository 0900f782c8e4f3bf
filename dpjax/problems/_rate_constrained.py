"""Minimise a loss subject to bounds on prediction rates over subsets of the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_shape, register_dataclass, static_field
from dpjax.problems._constraints import RateConstraints, check_codes, no_constraints, violation
from dpjax.problems._dense_layers import layered_gradients
from dpjax.problems._risk import check_fields
from dpjax.transforms import OuterProduct

cross_entropy = optax.losses.softmax_cross_entropy_with_integer_labels
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
        shape = self.num_features, self.num_classes
        return {"w": jnp.zeros(shape), "b": jnp.zeros(self.num_classes)}

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


@register_dataclass
@dataclass(frozen=True)
class RateConstrained:
    r"""Mean loss, minimised subject to bounds on prediction rates.

    $$ \min_\theta \frac1n \sum_i \ell(h(\theta; x_i), y_i) \quad\text{s.t.}\quad
       \Gamma_j(\theta) \le \gamma_j $$

    Records are dicts with `x` (any tree of arrays `[n, ...]`), `y: int[n]` and what the
    constraints' part rule reads (`group: int[n]`, ...).

    Guarantee: none of its own. The logits of a record depend on that record and the parameters
    alone, which is yours to see to if `batched`; solvers then clip its gradient, and what it adds
    to a table of predictions by part is a row of l1 norm at most 1, 0 for a record that is not
    `valid`.

    Attributes:
      logits: `h(params, x) -> [K]` of one record, or one logit of two classes, `[]` or `[1]`; or an
        equinox or `flax.nnx` module as it comes, which is made a `Network` (static). With a method
        `pullback`, as `LinearLogits` has, it is called on batches and gives per-example gradients
        its own way.
      loss: `loss(logits [K], y) -> scalar` of one record (static).
      constraints: The table of constraints, or a list of them, which are combined; None for none.
      init: Parameters to start from (*public*); None for those of a module.
      batched: Whether `logits` and `loss` take batches, `[B, ...]` to `[B, K]`, and `[B, K]` and
        `[B]` to `[B]` (static).

    Raises:
      ValueError: If there are no parameters to start from, or class counts disagree.
      TypeError: If `init` holds functions, as a whole module does.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.RateConstrained.linear(
      ...     num_features=3, num_classes=2,
      ...     constraints=dpjax.problems.demographic_parity(2, 2, slack=0.05))
      >>> problem.logits(problem.init, jnp.ones((5, 3))).shape
      (5, 2)
    """

    logits: Callable[..., jax.Array] = static_field()
    loss: Callable[..., jax.Array] = static_field(default=cross_entropy)
    constraints: Any = None
    init: PyTree = None
    batched: bool = static_field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.init is None and not isinstance(self.logits, Network) and is_model(self.logits):
            object.__setattr__(self, "logits", Network(self.logits))
        if isinstance(self.constraints, list | tuple):
            object.__setattr__(self, "constraints", RateConstraints.combine(*self.constraints))
        if self.init is None and isinstance(self.logits, LinearLogits | Network):
            object.__setattr__(self, "init", self.logits.init())
        if self.init is None:
            raise ValueError("init is required: the parameters to start from")
        if any(callable(leaf) for leaf in jax.tree.leaves(self.init)):
            raise TypeError(
                "init must hold arrays, got functions too, as a whole module does: give the module "
                "as logits, without init, or its parameters alone, as by eqx.partition or nnx.split"
            )
        if self.constraints is None and isinstance(self.logits, LinearLogits):
            empty = no_constraints(self.logits.num_classes)
            object.__setattr__(self, "constraints", empty)
        if isinstance(self.logits, LinearLogits) and isinstance(self.constraints, RateConstraints):
            weights = self.constraints.weights
            have, want = self.logits.num_classes, np.shape(weights)[-1:]
            if hasattr(weights, "shape") and want != (have,):
                raise ValueError(f"num_classes must agree: model has {have}, constraints {want[0]}")

    @classmethod
    def linear(
        cls,
        num_features: int,
        num_classes: int,
        constraints: RateConstraints | Sequence[RateConstraints] | None = None,
        loss: Callable[..., jax.Array] = cross_entropy,
    ) -> "RateConstrained":
        """Multinomial logistic regression from zero, parameters `{"w": [p, K], "b": [K]}`.

        Args:
          num_features: p, length of a record's `x`.
          num_classes: K.
          constraints: On the rates of predictions, one table or a list; None for plain risk.
          loss: Of the logits and the label of one record, as the field `loss`.

        Returns:
          The problem.
        """
        return cls(LinearLogits(num_features, num_classes), loss, constraints)

    @property
    def num_constraints(self) -> int:
        """J; 0 makes this plain empirical risk minimisation."""
        return 0 if self.constraints is None else self.constraints.num_constraints

    @property
    def num_params(self) -> int:
        """Number of real parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.init))

    def check(self, data: PyTree) -> None:
        """Raises ValueError unless the records lie in the problem's public domain.

        Of traced records shapes and types alone are looked at. NaN and inf in `x` are let through:
        such a record contributes nothing.
        """
        check_fields(data, "x", "y")
        if isinstance(self.logits, LinearLogits):
            check_shape('data["x"]', data["x"], (None, self.logits.num_features))
            check_codes("y", data, self.logits.num_classes)
        elif self.num_constraints and self.loss is cross_entropy:
            check_codes("y", data, self.constraints.num_classes)
        if self.num_constraints:
            self.constraints.part.check(data)

    def class_logits(self, params: PyTree, x: PyTree) -> jax.Array:
        """Logits `[B, K]` of inputs `[B, ...]`; (0, t) of a model of one logit t.

        Raises:
          ValueError: If the model has another number of classes than the constraints.
        """
        if self.batched or hasattr(self.logits, "pullback"):
            logits = self.logits(params, x)
        else:
            logits = jax.vmap(self.logits, (None, 0))(params, x)
        if logits.ndim == 1 or logits.shape[1:] == (1,):
            logits = jax.vmap(_two_at_least)(logits)
        classes = self.constraints.num_classes if self.num_constraints else logits.shape[-1]
        if logits.ndim != 2 or logits.shape[1] != classes:
            raise ValueError(
                f"logits must have {classes} columns, one a class of the constraints, got shape "
                f"{list(logits.shape)} of a batch: the model is called on one record and gives "
                "[K], unless batched=True"
            )
        return logits

    def losses(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each record, `[B]`, of logits `[B, K]` and labels `[B]`.

        Raises:
          ValueError: If the loss of a record is no number.
        """
        losses = self.loss(logits, y) if self.batched else jax.vmap(self.loss)(logits, y)
        if losses.shape != y.shape[:1]:
            raise ValueError(
                "loss must give one number a record, of logits [K] and a label, unless "
                f"batched=True; got shape {list(losses.shape)} of a batch of {y.shape[0]}"
            )
        return losses

    def valid(self, logits: jax.Array, batch: PyTree) -> jax.Array:
        """Which records count, bool `[B]`: finite logits and a label in range."""
        label = batch["y"]
        valid = jnp.all(jnp.isfinite(logits), axis=-1)
        if jnp.issubdtype(label.dtype, jnp.integer):
            valid &= (label >= 0) & (label < logits.shape[-1])
        return valid

    def rates(self, logits: jax.Array, *, temperature: ArrayLike, hard: bool) -> jax.Array:
        r"""What each record adds to the rates, `[B, K]`: one-hot argmax if `hard`, else
        $\sigma_\tau(h)$ of the `logits` `[B, K]` at `temperature` $\tau$.
        """
        if hard:
            return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=logits.dtype)
        return jax.nn.softmax(temperature * logits, axis=-1)

    def cotangent(
        self,
        logits: jax.Array,
        batch: PyTree,
        cell_weights: ArrayLike | None = None,
        temperature: ArrayLike = 1.0,
    ) -> jax.Array:
        r"""Gradient in logit space of $\ell + \langle u_{part}, \sigma_\tau(h) \rangle$, `[B, K]`.

        The constraints of a record enter only through the row $u$ of its part, so that all of them
        together cost one softmax, however many there are.

        Args:
          logits: `[B, K]`.
          batch: The records.
          cell_weights: `u`, `[Q, K]`, or None for the loss alone. Held fixed.
          temperature: tau.
        """

        def loss(h: jax.Array) -> jax.Array:
            return jnp.sum(self.losses(h, batch["y"]))

        cotangent = jax.grad(loss)(logits)
        if cell_weights is None:
            return cotangent
        parts = self.constraints.one_hot_parts(self.constraints.part(batch), logits.dtype)
        # a row of the table for each record, all its digits
        u = jnp.matmul(parts, jax.lax.stop_gradient(cell_weights), precision="highest")
        p = jax.nn.softmax(temperature * logits, axis=-1)
        return cotangent + temperature * p * (u - jnp.sum(u * p, axis=-1, keepdims=True))

    def pullback(
        self, params: PyTree, batch: PyTree, cotangent: jax.Array, *, factored: bool = False
    ) -> PyTree:
        """Per-example gradients `[B, *p]` of `cotangent[b] @ h(x[b])`.

        Where `factored`, those of dense layers are `OuterProduct`, as those of `LinearLogits` are.
        """
        if hasattr(self.logits, "pullback"):
            return self.logits.pullback(params, batch["x"], cotangent)

        def product(p: PyTree, record: tuple[PyTree, jax.Array]) -> jax.Array:
            x, c = record
            if self.batched:
                logits = self.class_logits(p, jax.tree.map(lambda a: a[None], x))[0]
            else:
                logits = _two_at_least(self.logits(p, x))
            return jnp.sum(c.astype(logits.dtype) * logits)

        records = batch["x"], cotangent
        if factored:
            return layered_gradients(product, params, records)
        return jax.vmap(jax.grad(product), in_axes=(None, 0))(params, records)

    def per_example_gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """Gradients `[B, *p]` of the loss of each record; 0 for a label out of range."""
        return self.pullback(params, batch, self._of_loss(params, batch))

    def factored_gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """The same, with `OuterProduct` for the weights of dense layers."""
        if type(self).per_example_gradients is not RateConstrained.per_example_gradients:
            return self.per_example_gradients(params, batch)
        return self.pullback(params, batch, self._of_loss(params, batch), factored=True)

    def _of_loss(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Slopes `[B, K]` of the loss in the logits."""
        logits = self.class_logits(params, batch["x"])
        valid = self.valid(logits, batch)[:, None]
        return jnp.where(valid, self.cotangent(logits, batch), 0)

    def project(self, params: PyTree) -> PyTree:
        """Identity: the parameters are unconstrained."""
        return params

    def mean_loss(self, params: PyTree, data: PyTree) -> jax.Array:
        """Mean loss over `data`, a scalar. **Not private**."""
        return jnp.mean(self.losses(self.class_logits(params, data["x"]), data["y"]))

    def error(self, params: PyTree, data: PyTree) -> jax.Array:
        """Share of records whose largest logit is not their label. **Not private**."""
        return jnp.mean(jnp.argmax(self.class_logits(params, data["x"]), axis=-1) != data["y"])

    def constraint_values(
        self, params: PyTree, data: PyTree, *, hard: bool = True, temperature: ArrayLike = 1.0
    ) -> jax.Array:
        r"""$\Gamma$, `[J]`, exactly, on all of `data`. **Not private**.

        Rates are those of predictions if `hard`, else of softmaxes at `temperature`, a scalar. A
        subset without records has rate 0 in every class.
        """
        rates = self.rates(self.class_logits(params, data["x"]), temperature=temperature, hard=hard)
        cells = self.constraints.tabulate(rates, self.constraints.part(data))
        return self.constraints.values(cells, jnp.maximum(self.constraints.counts(cells), 1e-9))

    def disparity(self, params: PyTree, data: PyTree) -> jax.Array:
        r"""$\max_j \Gamma_j$ with hard predictions, a scalar. **Not private**.

        Raises:
          ValueError: If there are no constraints.
        """
        if not self.num_constraints:
            raise ValueError(
                "disparity needs constraints, which say whose rates are compared, got none: for a "
                "bound that never binds give demographic_parity(..., slack=1.0)"
            )
        return jnp.max(self.constraint_values(params, data))

    def violation(self, params: PyTree, data: PyTree) -> jax.Array:
        r"""$\max_j (\Gamma_j - \gamma_j)_+$ with hard predictions, a scalar. **Not private**."""
        return violation(self.constraint_values(params, data), self.constraints.slack)


def _two_at_least(logits: jax.Array) -> jax.Array:
    """Logits `[K]` of one record; (0, t) of one logit t, `[]` or `[1]`."""
    return logits if logits.size > 1 else jnp.pad(logits.reshape(1), (1, 0))
