"""A number scaled between public bounds, as one feature."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scaled:
    """A number clipped to public bounds and mapped to `[-1, 1]`; NaN gives 0, the middle.

    Args:
        column: the column to read.
        low: public lower bound, mapped to -1.
        high: public upper bound, mapped to 1.
        transform: public monotone map applied to value and bounds before scaling, e.g. `np.log`.
    """

    column: str
    low: float
    high: float
    transform: Callable[[np.ndarray], np.ndarray] | None = None

    def names(self) -> tuple[str, ...]:
        return (self.column,)

    def encode(self, column: np.ndarray) -> np.ndarray:
        value = np.clip(np.asarray(column, np.float64), self.low, self.high)
        bounds = np.array([self.low, self.high], np.float64)
        if self.transform is not None:
            value, bounds = self.transform(value), self.transform(bounds)
        low, high = bounds
        scaled = np.clip(2.0 * (value - low) / (high - low) - 1.0, -1.0, 1.0)
        return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, None]


def signed_log(value: np.ndarray) -> np.ndarray:
    """`sign(v) log(1 + |v|)`, elementwise: tames amounts of money of either sign."""
    return np.sign(value) * np.log1p(np.abs(value))
