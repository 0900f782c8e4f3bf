"""What a numeric argument may be, and values that are none of it."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NAN, INF, HUGE = math.nan, math.inf, 10**400

# of no numeric argument, whatever it means
_NO_NUMBERS: tuple[Any, ...] = ("1", b"1", 1j, np.array("1"), np.array([1j]))
# None, flags and lists stand for leaves when a pytree is rebuilt or stacked; elsewhere they are
# mistakes
_PLACEHOLDERS: tuple[Any, ...] = (None, True, object(), {}, [1.0, 2.0], np.ones(2))


@dataclass(frozen=True)
class Number:
    """A real argument in an interval, whether it is a leaf of a pytree or may be infinite."""

    low: float = -INF
    high: float = INF
    open_low: bool = False
    open_high: bool = False
    leaf: bool = False
    infinite: bool = False

    def bad(self) -> list[Any]:
        outside = [NAN, -INF, HUGE, np.float32(NAN), np.array(NAN)] + [INF] * (not self.infinite)
        if self.low > -INF:
            outside += [self.low - 1, self.low - 1e-3] + [self.low] * self.open_low
        if self.high < INF:
            outside += [self.high + 1, self.high + 1e-3] + [self.high] * self.open_high
        return [*outside, *_NO_NUMBERS, *(() if self.leaf else _PLACEHOLDERS)]

    def holds(self, value: Any) -> bool:
        """Whether a float or an integer is what the argument may be."""
        if value == INF and self.infinite:
            return True
        if value != value or abs(value) > sys.float_info.max:
            return False
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below


@dataclass(frozen=True)
class Count:
    """An integer of at least `minimum`, or None where `optional`."""

    minimum: int = 1
    optional: bool = False

    def bad(self) -> list[Any]:
        wrong = [NAN, INF, 1.5, float(self.minimum + 1), self.minimum - 1, -(2**70), True]
        wrong += [[1], np.ones(2), object(), *_NO_NUMBERS]
        return wrong if self.optional else [*wrong, None]

    def holds(self, value: Any) -> bool:
        return isinstance(value, int) and value >= self.minimum


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    def bad(self) -> list[Any]:
        return ["nonsense", "", 3, NAN, True]


def real(leaf: bool = False) -> Number:
    return Number(leaf=leaf)


def positive(leaf: bool = False, infinite: bool = False) -> Number:
    return Number(low=0.0, open_low=True, leaf=leaf, infinite=infinite)


def nonnegative(leaf: bool = False) -> Number:
    return Number(low=0.0, leaf=leaf)


def share(leaf: bool = False) -> Number:
    return Number(0.0, 1.0, leaf=leaf)


RATE = Number(0.0, 1.0, open_low=True)
PROBABILITY = Number(0.0, 1.0, open_low=True, open_high=True)
DELTA = Number(0.0, 1.0, open_high=True)


@dataclass(frozen=True)
class Row:
    """`make(**given, **good)` is fine; each of `attacked` names what the argument may be."""

    make: Any
    given: dict[str, Any] = field(default_factory=dict)
    attacked: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def good(self) -> dict[str, Any]:
        return {name: value for name, (value, _) in self.attacked.items()}


def row(make: Any, given: dict[str, Any] | None = None, **attacked: tuple[Any, Any]) -> Row:
    return Row(make, given or {}, attacked)


SWEPT = (1.0, nonnegative(leaf=True))
SWEPT_POSITIVE = (1.0, positive(leaf=True))
PAIR = ((0.1, 0.1), positive(leaf=True))
DESCENT: dict[str, Any] = {
    "noise_multiplier": SWEPT,
    "clip_norm": SWEPT,
    "learning_rate": SWEPT,
    "batch_size": SWEPT_POSITIVE,
    "decay": (0.9, share(leaf=True)),
    "average": ("last", Choice()),
    "microbatch_size": (2, Count(optional=True)),
}
SELECTION: dict[str, Any] = {
    "num_records": SWEPT_POSITIVE,
    "score_range": (2.0, positive()),
    "relation": ("replace_one", Choice()),
}
MEASUREMENT: dict[str, Any] = {
    "stddev": SWEPT,
    "num_records": SWEPT_POSITIVE,
    "relation": ("replace_one", Choice()),
}
