"""The public law of the secret number of runs."""

import dataclasses
import functools
import math

import jax
import numpy as np
from scipy import optimize, special

from dpjax.core._checks import check_int, check_scalar

_LOWEST = math.log(1e-12)  # of gamma


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RunsLaw:
    r"""Truncated negative binomial number K of runs, of a given mean.

    $P(K = k) \propto (1 - \gamma)^k\, \Gamma(k + \eta) / k!$ for $k \ge 1$

    With `max_runs` the law is restricted to `{1, ..., max_runs}` and gamma solved again for the
    mean: the law to use where all `max_runs` runs are executed so that time does not reveal K.

    Guarantee: none by itself; K must stay secret and independent of the data.

    Args:
        mean: Expected number of runs, > 1, or 1 with `max_runs`. *Public*.
        shape: eta > -1; smaller is cheaper, but more often makes a single run. *Public*.
        max_runs: Largest number of runs; None for no bound. *Public*.

    Raises:
        TypeError: If mean or shape is no number, or `max_runs` no integer.
        ValueError: If a value is outside its bound, or no law within `max_runs` has this mean.

    Example:
        >>> round(RunsLaw(16.0, 0.0).gamma, 7)
        0.0145627
        >>> round(RunsLaw(16.0, 1.0, max_runs=64).gamma, 4)
        0.0571

    Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy".
    """

    mean: float
    shape: float = 0.0
    max_runs: int | None = None

    def __post_init__(self) -> None:
        check_scalar("mean", self.mean)
        check_scalar("shape", self.shape)
        if not -1 < self.shape < math.inf:
            raise ValueError(f"shape must be finite and > -1, got {self.shape!r}")
        if not 1 <= self.mean < math.inf or (self.mean == 1 and self.max_runs is None):
            raise ValueError(
                f"mean must be finite and > 1, or >= 1 with max_runs, got {self.mean!r}"
            )
        if self.max_runs is not None:
            check_int("max_runs", self.max_runs, minimum=1)
        vars(self).update(mean=float(self.mean), shape=float(self.shape))
        _gamma(self)

    @property
    def gamma(self) -> float:
        """The parameter in (0, 1] that gives the mean; 1 where there is a single run."""
        return _gamma(self)

    def pmf(self, k: np.ndarray) -> np.ndarray:
        """P(K = k) for integers k >= 1, an array of the same shape."""
        k = np.asarray(k, float)
        if self.max_runs is None:
            gamma, eta = self.gamma, self.shape
            log_scale = math.log(math.log(1 / gamma)) if eta == 0 else _log_normaliser(gamma, eta)
            return np.exp(_log_weights(k, math.log1p(-gamma), eta) - log_scale)
        table = _table(self)
        inside = (k >= 1) & (k <= self.max_runs)
        return np.where(inside, table[np.where(inside, k, 1).astype(int) - 1], 0.0)

    def derivative(self, tail: np.ndarray, order: int = 1) -> np.ndarray:
        """The derivative of this `order`, 1 or 2, of E q^K at q = 1 - tail, for tails in [0, 1]."""
        if self.max_runs is None:
            gamma, eta = self.gamma, self.shape
            a = 1 - gamma
            log_inverse = -math.log(gamma)
            first = a / (log_inverse if eta == 0 else math.expm1(eta * log_inverse) / eta)
            base = gamma + a * tail
            power = first * base ** -(eta + 1)
            return power if order == 1 else power * (eta + 1) * a / base
        runs = np.arange(1, self.max_runs + 1)
        coefficients = _table(self) * runs
        if order == 2:
            coefficients = (coefficients * (runs - 1))[1:]
        q, total = 1 - tail, np.zeros_like(tail)
        for coefficient in coefficients[::-1]:
            total *= q
            total += coefficient
        return total

    def draw(self, uniform: float) -> int:
        """The number of runs at a uniform number in [0, 1) (*secret*); needs `max_runs`."""
        if self.max_runs is None:
            raise ValueError("max_runs must be given to draw the number of runs, got None")
        cumulated = np.cumsum(_table(self))
        return 1 + int(np.searchsorted(cumulated[:-1], uniform, side="right"))


def _log_weights(k: np.ndarray, log_a: float, eta: float) -> np.ndarray:
    return k * log_a + special.gammaln(k + eta) - special.gammaln(k + 1)


def _log_normaliser(gamma: float, eta: float) -> float:
    """Of Gamma(k + eta) / k! a^k over k >= 1; positive for eta of both signs."""
    return float(special.gammaln(eta + 1)) + math.log(math.expm1(-eta * math.log(gamma)) / eta)


@functools.lru_cache(maxsize=256)
def _gamma(law: RunsLaw) -> float:
    if law.mean == 1 or law.max_runs == 1:
        if law.mean != 1:
            raise ValueError(f"mean must be 1 with max_runs = 1, got {law.mean!r}")
        return 1.0

    def excess(log_gamma: float) -> float:
        return math.log(_mean(law, math.exp(log_gamma)) / law.mean)

    highest = math.log1p(-min(1e-3, (law.mean - 1) / (4 + 4 * law.shape)))
    if excess(_LOWEST) < 0:
        raise ValueError(
            f"max_runs must be larger for a mean of {law.mean:g} runs at shape {law.shape:g}, got "
            f"{law.max_runs}: raise max_runs or shape"
        )
    return math.exp(optimize.brentq(excess, _LOWEST, highest, xtol=1e-14, rtol=1e-14))


def _mean(law: RunsLaw, gamma: float) -> float:
    eta = law.shape
    if law.max_runs is not None:
        k = np.arange(1, law.max_runs + 1)
        return float(k @ special.softmax(_log_weights(k, math.log1p(-gamma), eta)))
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


@functools.lru_cache(maxsize=64)
def _table(law: RunsLaw) -> np.ndarray:
    """The pmf at 1, ..., max_runs."""
    runs = np.arange(1, int(law.max_runs or 1) + 1)
    if law.gamma == 1:
        return np.where(runs == 1, 1.0, 0.0)
    return special.softmax(_log_weights(runs, math.log1p(-law.gamma), law.shape))
