"""A linear model of one column of a table, given the others."""

import dataclasses
import functools
import math
from typing import TypeAlias

import numpy as np

from dpjax.core import PyTree, check_choice
from dpjax.problems import LinearModel, RateConstrained
from dpjax.queries import Date, Domain, Numeric
from dpjax.queries._domain import labels_of
from dpjax.queries.tables._frames import column_of, present_values

Features: TypeAlias = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TableModel:
    r"""Features and labels of a raw table, within bounds that follow from its schema.

    A number or day t of [low, high] becomes $2 (t - low) / (high - low) - 1$, clipped to [-1, 1],
    and the logarithm of an input on a log scale likewise. A category of two codes becomes -1 or 1,
    of more an indicator of each; where a number may be missing, it is 0 then, and an indicator says
    so. So a column adds at most 1 to the squared norm of a row, and rows are divided by the root of
    the number of columns.

    | target | problem | labels |
    | --- | --- | --- |
    | two codes | logistic `LinearModel` with an intercept | the code |
    | more codes | `RateConstrained.linear` without constraints | the code |
    | `Numeric` | Huber `LinearModel` with an intercept | scaled to [-1, 1] |

    Guarantee: none of its own. All of it is *public*, and one record's features follow from that
    record alone. A record outside the schema is refused, which tells that there is one.

    Attributes:
      domain: The schema, of `Domain.from_columns` or `Domain.from_json`.
      target: Name of the column to predict.

    Raises:
      ValueError: If the target is none of the columns, or the only one.
    """

    domain: Domain
    target: str

    def __post_init__(self) -> None:
        names = self.domain.attributes
        check_choice("target", self.target, names)
        if len(names) < 2:
            raise ValueError(f"columns beside the target {self.target!r} must be >= 1, got none")

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the features, in order."""
        return tuple(name for column in self.inputs for name in self._names_of(column))

    @functools.cached_property
    def problem(self) -> LinearModel | RateConstrained:
        """What `dpjax.fit` solves."""
        if self.regression:
            return LinearModel("huber", len(self.names), intercept=1.0)
        classes = len(labels_of(self.domain, self.target))
        if classes == 2:
            return LinearModel("logistic", len(self.names), intercept=1.0)
        return RateConstrained.linear(len(self.names), classes)

    @property
    def classes(self) -> list[str]:
        """Labels of a target that is no number, by code; weights are for the last of two."""
        return [] if self.regression else self._texts(self.target)

    @property
    def norm(self) -> float:
        """What rows are divided by."""
        return math.sqrt(len(self.inputs))

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return isinstance(self._column(self.target), Numeric | Date)

    def features(self, table: object) -> np.ndarray:
        """Inputs `[n, p]` float32 of a raw table's rows, of norm at most 1."""
        codes = self.domain.project(self.inputs).encode(table)
        columns = []
        for axis, name in enumerate(self.inputs):
            kind = self._column(name)
            if isinstance(kind, Numeric | Date):
                log = isinstance(kind, Numeric) and kind.scale == "log"
                scaled, present = _scaled(name, kind, table, log=log)
                columns += [scaled] + [~present] * kind.missing
            else:
                labels = range(len(labels_of(self.domain, name)))
                indicators = [codes[:, axis] == label for label in labels]
                columns += [2.0 * indicators[1] - 1] if len(labels) == 2 else indicators
        return (np.stack(columns, axis=1) / self.norm).astype(np.float32)

    def records(self, table: object) -> Features:
        """`{"x": [n, p], "y": [n]}` of a raw table; a number that is missing is NaN in y.

        Such a row contributes nothing to a fit.

        Raises:
          ValueError: As `Domain.encode`.
        """
        kind = self._column(self.target)
        codes = self.domain.project([self.target]).encode(table)[:, 0]
        if isinstance(kind, Numeric | Date):
            y, present = _scaled(self.target, kind, table)
            y = np.where(present, y, np.nan).astype(np.float32)
            return {"x": self.features(table), "y": y}
        return {"x": self.features(table), "y": codes}

    def guesses(self, params: PyTree, x: np.ndarray) -> np.ndarray:
        """Codes or scaled numbers `[n]`, by parameters of the problem and features `[n, p]`."""
        if isinstance(params, dict):
            return np.argmax(x @ np.asarray(params["w"]) + np.asarray(params["b"]), axis=1)
        margins = x @ np.asarray(params[:-1]) + np.asarray(params[-1])
        return margins if self.regression else (margins > 0).astype(int)

    def predict(self, params: PyTree, table: object) -> np.ndarray:
        """Values `[n]` of the target for a raw table's rows, which need not have its column.

        Args:
          params: Of the problem, as `dpjax.fit` gives them.
          table: As `Domain.encode` takes it (*secret*, or public: nothing is released).

        Returns:
          Labels of the schema, or numbers or days of its range.
        """
        guesses, kind = self.guesses(params, self.features(table)), self._column(self.target)
        if not isinstance(kind, Numeric | Date):
            labels = labels_of(self.domain, self.target)
            return np.array([labels[code] for code in guesses], object)
        low, high = ends(kind)
        values = low + (high - low) * (np.clip(guesses, -1, 1) + 1) / 2
        return values.round().astype("datetime64[D]") if isinstance(kind, Date) else values

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns beside the target, in order."""
        return tuple(name for name in self.domain.attributes if name != self.target)

    def _column(self, name: str) -> object:
        return dict(self.domain.spec)[name]

    def _names_of(self, name: str) -> list[str]:
        kind = self._column(name)
        if isinstance(kind, Numeric | Date):
            return [name] + [f"{name} is missing"] * kind.missing
        texts = self._texts(name)
        return [f"{name} = {text}" for text in (texts[1:] if len(texts) == 2 else texts)]

    def _texts(self, name: str) -> list[str]:
        labels = labels_of(self.domain, name)
        return ["missing" if label is None else str(label) for label in labels]


def ends(column: Numeric | Date) -> tuple[float, float]:
    """Of the range, days since 1970."""
    if isinstance(column, Date):
        low, high = column._ends.astype(float).tolist()
        return low, high
    return float(column.low), float(column.high)


def _scaled(
    name: str, column: Numeric | Date, table: object, *, log: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Values `[n]` in [-1, 1], 0 where they are missing, and which are present.

    `Domain.encode` has refused what is no number or day.
    """
    values, present = present_values(name, column_of(table, name))
    low, high = ends(column)
    if isinstance(column, Date):
        days = np.array(values.tolist(), "datetime64[us]").astype("datetime64[D]")
        values = days.astype(float)
    else:
        values = np.array([float(min(max(v, low), high)) for v in values.tolist()], float)
    if log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    scaled = np.zeros(len(present))
    if high > low:
        scaled[present] = np.clip((values - low) / (high - low) * 2 - 1, -1, 1)
    return scaled, present
