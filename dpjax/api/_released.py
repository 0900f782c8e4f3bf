"""What query release gives its user: answers, a distribution to sample from, and why."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_int, check_key, register_dataclass, static_field
from dpjax.geometry import sample_vertices
from dpjax.privacy import Guarantee
from dpjax.privacy._guarantee import epsilon_line
from dpjax.privacy._relations import relation_name
from dpjax.queries import Workload


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Release:
    """Released answers and the distribution behind them; all of it is covered by the guarantee.

    Attributes:
      answers: `[m]`, of the distribution, unless the method says otherwise.
      log_probs: Log probabilities of the cells of the universe, `[k]`.
      stddev: Standard deviation of the noise in the best unbiased estimate of each answer, `[m]`,
        NaN where there is none: an error bar, mostly on the safe side, since the fit smooths. None
        for methods that select.
      workload: The queries.
      guarantee: `guarantee.epsilon(delta)`.
      method: Which method was used.
      reason: Why.
      delta: That of the budget, where there was one: the repr shows epsilon there.
    """

    answers: jax.Array
    log_probs: jax.Array
    stddev: jax.Array | None
    workload: Workload
    guarantee: Guarantee = dataclasses.field(metadata={"static": True})
    method: str = dataclasses.field(metadata={"static": True})
    reason: str = dataclasses.field(metadata={"static": True})
    delta: float | None = static_field(default=None)

    def __repr__(self) -> str:
        """Method, sizes, relation and epsilon in two lines; arrays are of any length."""
        sizes = [
            f"{name}={list(np.shape(getattr(self, name)))}" for name in ("answers", "log_probs")
        ]
        deltas = () if self.delta is None else (self.delta,)
        return (
            f"Release(method={self.method!r}, workload={type(self.workload).__name__}, "
            f"{', '.join(sizes)})\n  {epsilon_line(self.guarantee, *deltas)}, "
            f"relation={relation_name(self.guarantee.relation)!r}"
        )

    def sample(self, key: jax.Array, n: int, *, systematic: bool = False) -> jax.Array:
        r"""Synthetic records, as many as wanted: post-processing.

        Sampling adds an error of at most $\sqrt{2 \log(2m) / n} / 2$ to answers of range 1;
        systematic sampling, much less.

        Args:
          key: Typed key, scalar.
          n: Number of records, >= 1.
          systematic: Whether each cell gets its expected number of records, rounded up or down, in
            random order; else records are independent.

        Returns:
          Codes `[n, A]` int32 of a workload over a domain, else cells `[n]` int32.

        Raises:
          TypeError: If the key is not typed, or n is no integer.
          ValueError: If n < 1.
        """
        check_key("key", key)
        check_int("n", n, minimum=1)
        if systematic:
            offset, order = jax.random.split(key)
            # on the host: single precision cannot add up many small shares
            shares = np.exp(np.asarray(self.log_probs, np.float64))
            places = (np.arange(n) + float(jax.random.uniform(offset))) / n
            edges = np.cumsum(shares)
            found = np.searchsorted(edges / edges[-1], places, side="right")
            last = int(np.flatnonzero(shares)[-1])
            cells = jax.random.permutation(order, jnp.asarray(np.minimum(found, last), jnp.int32))
        else:
            cells = sample_vertices(key, self.log_probs, n)
        return cells if self.workload.domain is None else self.workload.domain.codes(cells)

    def decode(self, codes: ArrayLike) -> dict[str, np.ndarray]:
        """Columns by name, in the labels of the domain, from codes `[n, A]`.

        Raises:
          ValueError: If the workload has no domain.
        """
        if self.workload.domain is None:
            raise ValueError(f"workload must be over a domain, got {type(self.workload).__name__}")
        return self.workload.domain.decode(codes)
