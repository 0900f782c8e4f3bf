"""Data-independent encodings of table columns: each record alone decides its row.

A data set is encoded by a tuple of *blocks*. A block reads one column and knows, before any
record is seen, how many features it makes, what they are called and how large they can get. So
the whole encoder is a public constant, and `norm_bound` is a true bound for any record whatever.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

Table = Mapping[str, np.ndarray]


class Block(Protocol):
    """One group of features made from one column."""

    @property
    def column(self) -> str:
        """The column that is read."""

    def names(self) -> tuple[str, ...]:
        """Names of the features, in order."""

    def norm_bound(self) -> float:
        """The largest l2 norm of this block's part of a row."""

    def encode(self, column: np.ndarray) -> np.ndarray:
        """Encodes a column `[n]` as `[n, len(names())]` float32."""


@dataclass(frozen=True)
class OneHot:
    """One feature a category of a public vocabulary; unknown values give an all-zero block.

    Args:
        column: the column to read.
        vocabulary: public, distinct values (str or int).
        groups: public map from values to coarser labels, applied before the vocabulary.
    """

    column: str
    vocabulary: tuple[str, ...] | tuple[int, ...]
    groups: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}={value}" for value in self.vocabulary)

    def norm_bound(self) -> float:
        return 1.0

    def encode(self, column: np.ndarray) -> np.ndarray:
        index: dict[object, int] = {value: code for code, value in enumerate(self.vocabulary)}
        for value, label in self.groups.items():
            if label in index:
                index[value] = index[label]
        codes = np.fromiter((index.get(v, -1) for v in column.tolist()), np.int64, len(column))
        return _indicator(codes, len(self.vocabulary))


@dataclass(frozen=True)
class Bins:
    """Indicators of public bins `[e_0, e_1), [e_1, e_2), ..., [e_last, inf)` of a number.

    What lies below the first edge, and NaN, gives an all-zero block.

    Args:
        column: the column to read.
        edges: public, strictly increasing lower edges.
    """

    column: str
    edges: tuple[float, ...]

    def names(self) -> tuple[str, ...]:
        low = [f"{edge:g}" for edge in self.edges]
        high = [*low[1:], "inf"]
        return tuple(f"{self.column}:[{a},{b})" for a, b in zip(low, high, strict=True))

    def norm_bound(self) -> float:
        return 1.0

    def encode(self, column: np.ndarray) -> np.ndarray:
        value = np.nan_to_num(np.asarray(column, np.float64), nan=-np.inf, posinf=np.inf)
        edges = np.asarray(self.edges, np.float64)
        return _indicator(np.searchsorted(edges, value, side="right") - 1, len(edges))


def encode(table: Table, blocks: Sequence[Block]) -> np.ndarray:
    """Encodes a table, one record at a time in effect: a row depends on its own record alone.

    Args:
        table: *secret*. Columns, each of shape `[n]`.
        blocks: *public*. What is read and how.

    Returns:
        Array `[n, p]` float32 with the blocks side by side, `p = len(feature_names(blocks))`.

    Raises:
        KeyError: a block's column is missing from the table.
    """
    missing = [block.column for block in blocks if block.column not in table]
    if missing:
        raise KeyError(f"table must hold the columns {missing}, got {list(table)}")
    return np.concatenate([block.encode(table[block.column]) for block in blocks], axis=1)


def feature_names(blocks: Sequence[Block]) -> tuple[str, ...]:
    """The names of all features, in the order of `encode`'s columns."""
    return tuple(name for block in blocks for name in block.names())


def norm_bound(blocks: Sequence[Block]) -> float:
    """The largest l2 norm that any record's row can have: a public constant."""
    return math.sqrt(sum(block.norm_bound() ** 2 for block in blocks))


def _indicator(codes: np.ndarray, width: int) -> np.ndarray:
    """Rows of the identity by code, all zero where the code is outside [0, width)."""
    out = np.zeros((len(codes), width), np.float32)
    rows = np.flatnonzero((codes >= 0) & (codes < width))
    out[rows, codes[rows]] = 1.0
    return out
