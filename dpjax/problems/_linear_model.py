"""A regularised linear model: a loss of one inner product on a ball, with public bounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_choice, check_int, check_positive, check_shape, is_traced
from dpjax.core._fields import register_dataclass, static_field
from dpjax.privacy import SlopeBounds, huber_slopes, logistic_slopes, squared_slopes
from dpjax.problems._risk import OnBall, check_records
from dpjax.transforms import OuterProduct

LINKS = ("logistic", "huber", "squared")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearModel(OnBall):
    r"""$\min_{\|w\| \le R} \frac1n \sum_i \ell(\langle x_i, w\rangle, y_i)$ for a known link.

    Links: `"logistic"`, $\log(1 + e^{-y m})$ with labels {-1, 1} or {0, 1}; `"squared"`,
    $\frac12 (m - y)^2$; `"huber"`, which is squared for residuals up to a threshold and linear
    beyond. Records are brought within their public bounds here, so that no bound is assumed.

    | input | effect |
    | --- | --- |
    | x longer than `feature_bound` | scaled to that length |
    | y beyond `label_bound` | clipped to it (not logistic) |
    | NaN or inf in x or y | the record contributes nothing |

    So weights are for rows within the bounds: with longer ones use `predict`, and state bounds that
    most rows meet, since the defaults of 1 are for scaled data.

    Guarantee: none of its own. The bounds on one record's slopes hold for whatever the data are.

    Attributes:
      link: One of the above (static, as all fields are).
      num_features: Number of features p.
      radius: Radius R of an l2 ball around 0; None for no bound, which `"squared"` does not allow.
      feature_bound: Largest l2 norm of x (*public*).
      label_bound: Largest |y| of a regression (*public*).
      threshold: Of `"huber"`; None leaves it to the solver (*public*).
      intercept: A constant c that is appended to x, and counts in the ball and in the regulariser;
        the last parameter is its weight. None for no intercept (*public*).

    Raises:
      TypeError: If `num_features` is not an integer.
      ValueError: If a value is outside its bound, or a squared loss has no ball.

    Example:
      >>> import dpjax
      >>> problem = dpjax.problems.LinearModel("logistic", num_features=3, radius=2.0)
      >>> problem.num_params
      3
    """

    link: str = static_field()
    num_features: int = static_field()
    radius: float | None = static_field(default=None)
    feature_bound: float = static_field(default=1.0)
    label_bound: float = static_field(default=1.0)
    threshold: float | None = static_field(default=None)
    intercept: float | None = static_field(default=None)

    factored = True
    """Gradients are multiples of inputs."""

    def __post_init__(self) -> None:
        check_choice("link", self.link, LINKS)
        check_int("num_features", self.num_features, minimum=1)
        for name in ("radius", "feature_bound", "label_bound", "threshold", "intercept"):
            check_positive(name, getattr(self, name))
        if self.link == "squared" and self.radius is None:
            raise ValueError(
                "radius must be given for a squared loss, whose slopes have no bound otherwise: "
                'use link="huber" without it'
            )

    @property
    def num_params(self) -> int:
        """Number of parameters: features, and one for an intercept."""
        return self.num_features + (self.intercept is not None)

    @property
    def init(self) -> jax.Array:
        """Zeros, `[num_params]`."""
        return jnp.zeros(self.num_params)

    @property
    def input_bound(self) -> float:
        """Largest l2 norm of x with the intercept's constant."""
        return float((self.feature_bound**2 + (self.intercept or 0.0) ** 2) ** 0.5)

    @property
    def largest_threshold(self) -> float:
        """The threshold of `"huber"`, or the largest that a solver may choose."""
        return self.label_bound if self.threshold is None else self.threshold

    def slope_bounds(self) -> SlopeBounds:
        """Bounds on one record's slopes; of `"huber"` at its `largest_threshold`."""
        if self.link == "logistic":
            return logistic_slopes(self.radius, self.input_bound)
        if self.link == "huber":
            return huber_slopes(self.largest_threshold, self.input_bound)
        assert self.radius is not None
        return squared_slopes(self.label_bound, self.radius, self.input_bound)

    @property
    def lipschitz(self) -> float:
        """Largest gradient of a record."""
        return self.slope_bounds().slope

    @property
    def smoothness(self) -> float:
        """Largest curvature of a record."""
        return self.slope_bounds().curvature

    def check(self, data: PyTree) -> None:
        """Raises ValueError unless `data` holds inputs `x` `[n, p]` and labels `y` `[n]`.

        Also where a label of a class is none of -1, 0 and 1.
        """
        check_records(data, self.num_features)
        y = data["y"]
        check_shape("y", y, (None,))
        if self.link != "logistic" or is_traced(y):
            return
        known = np.asarray(y).astype(float)
        known = known[np.isfinite(known)]
        if not np.all(np.isin(known, (-1, 0, 1))):
            raise ValueError(
                "labels y must be -1 or 0 for one class, and 1 for the other: for more classes use "
                "RateConstrained.linear"
            )

    def prepare(self, batch: PyTree, share: ArrayLike | None = None) -> tuple[jax.Array, jax.Array]:
        """Inputs `[B, num_params]` and labels `[B]` within their bounds.

        Args:
          batch: Records `{"x": [B, p], "y": [B]}` (*secret*).
          share: In (0, 1]: features are at most this share of their bound long; None for 1
            (*public*, or released).

        Returns:
          Inputs and labels.
        """
        bound = self.feature_bound if share is None else share * jnp.asarray(self.feature_bound)
        dtype = jnp.result_type(batch["x"].dtype, jnp.float32)
        x, y = batch["x"].astype(dtype), batch["y"].astype(dtype)
        good = jnp.all(jnp.isfinite(x), axis=1) & jnp.isfinite(y)
        x, y = jnp.where(good[:, None], x, 0), jnp.where(good, y, 0)
        # squares of large numbers overflow, and their reciprocals are flushed to 0: such a row is
        # first multiplied by a power of two
        large = 2.0 ** (jnp.finfo(dtype).maxexp // 2)
        unit = jnp.where(jnp.max(jnp.abs(x), axis=1, keepdims=True) > large, 1 / large, 1)
        small = x * unit.astype(dtype)
        largest = jnp.max(jnp.abs(small), axis=1, keepdims=True)
        shape = small / jnp.where(largest > 0, largest, 1)
        norm = largest * jnp.linalg.norm(shape, axis=1, keepdims=True)
        longer = norm > bound * unit
        x = jnp.where(longer, small * (bound / jnp.where(longer, norm, 1)), x)
        if self.intercept is not None:
            x = jnp.concatenate([x, jnp.where(good, self.intercept, 0)[:, None]], axis=1)
        if self.link == "logistic":
            return x, jnp.where(y > 0, 1, -1).astype(dtype)
        return x, jnp.clip(y, -self.label_bound, self.label_bound)

    def predict(self, params: ArrayLike, x: ArrayLike) -> jax.Array:
        """Predictions `[B]`: of features within their bound, as in training.

        Args:
          params: Weights `[num_params]`.
          x: Features `[B, p]`.

        Returns:
          Of a regression numbers up to `label_bound`, of classes log odds, positive for class 1.

        Example:
          >>> import dpjax, jax.numpy as jnp
          >>> problem = dpjax.problems.LinearModel("huber", 2, label_bound=5.0)
          >>> problem.predict(jnp.array([2.0, 0.0]), jnp.array([[0.5, 0.0], [30.0, 0.0]])).tolist()
          [1.0, 2.0]
        """
        rows = jnp.asarray(x)
        inputs, _ = self.prepare({"x": rows, "y": jnp.zeros(len(rows))})
        margins = inputs @ jnp.asarray(params, inputs.dtype)
        if self.link == "logistic":
            return margins
        return jnp.clip(margins, -self.label_bound, self.label_bound)

    def feature_lengths(self, batch: PyTree) -> jax.Array:
        """Norms of features over their bound, at most 1, `[B]`; 0 where a value is not finite."""
        alone = dataclasses.replace(self, intercept=None)
        return jnp.linalg.norm(alone.prepare(batch)[0], axis=1) / self.feature_bound

    def losses(self, margins: jax.Array, y: jax.Array) -> jax.Array:
        """Losses `[B]` at `margins` and labels `[B]`."""
        if self.link == "logistic":
            return jax.nn.softplus(-y * margins)
        if self.link == "huber":
            return optax.losses.huber_loss(margins, y, delta=self.largest_threshold)
        return (margins - y) ** 2 / 2

    def slopes(
        self, margins: jax.Array, y: jax.Array, threshold: ArrayLike | None = None
    ) -> jax.Array:
        """Derivatives of the losses in the margin.

        Args:
          margins: Inner products `[B]`.
          y: Labels `[B]`, as `prepare` gives them.
          threshold: Of `"huber"`, a number; None for the problem's own.

        Returns:
          `[B]`.
        """
        if self.link == "logistic":
            return -y * jax.nn.sigmoid(-y * margins)
        if self.link == "huber":
            tau = jnp.asarray(self.largest_threshold if threshold is None else threshold)
            return jnp.clip(margins - y, -tau, tau)
        return margins - y

    def curvatures(
        self, margins: jax.Array, y: jax.Array, threshold: ArrayLike | None = None
    ) -> jax.Array:
        """Second derivatives of the losses in the margin, where there are any.

        Args:
          margins: Inner products `[B]`.
          y: Labels `[B]`, as `prepare` gives them.
          threshold: Of `"huber"`, a number; None for the problem's own.

        Returns:
          `[B]`.
        """
        if self.link == "logistic":
            return jax.nn.sigmoid(margins) * jax.nn.sigmoid(-margins)
        if self.link == "huber":
            tau = jnp.asarray(self.largest_threshold if threshold is None else threshold)
            return (jnp.abs(margins - y) < tau).astype(margins.dtype)
        return jnp.ones_like(margins)

    def per_example_losses(self, params: jax.Array, batch: PyTree) -> jax.Array:
        """Loss of each record, `[B]`."""
        x, y = self.prepare(batch)
        return self.losses(jnp.matmul(x, params.astype(x.dtype), precision="highest"), y)

    def per_example_gradients(self, params: jax.Array, batch: PyTree) -> OuterProduct:
        """Gradients of the loss of each record, factored."""
        x, y = self.prepare(batch)
        margins = jnp.matmul(x, params.astype(x.dtype), precision="highest")
        return OuterProduct(x, self.slopes(margins, y)[:, None])
