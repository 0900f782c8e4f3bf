"""Public bounds, and the warning where they are read from the data instead."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from sklearn.utils.validation import validate_data

from dpjax.core import check_choice, check_int
from dpjax.privacy._guarantee import epsilon_line
from dpjax.privacy._warnings import PrivacyWarning as PrivacyWarning

RELATIONS = ("replace_one", "add_or_remove_one")


class ShowsPrivacy:
    """The relation in every repr, and what a fit has cost, on a second line."""

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Parameters that are not the default, and the relation."""
        estimator: Any = self
        shown = super().__repr__(N_CHAR_MAX)  # type: ignore[call-arg]
        name, _, rest = shown.partition("(")
        if "relation=" not in rest:
            relation = f"relation={estimator.relation!r}"
            shown = f"{name}({relation}{'' if rest == ')' else ', '}{rest}"
        if hasattr(self, "guarantee_"):
            fitted: Any = estimator.guarantee_
            line = epsilon_line(fitted, estimator.delta_)
            shown += f"\n  fitted: {line}, relation={fitted.relation.name.lower()!r}"
        return shown


def public_codes(name: str, values: np.ndarray, public: ArrayLike | None) -> tuple[Any, np.ndarray]:
    """The distinct values, sorted, and each record's code among them.

    Args:
      name: Of the argument that says which values there are.
      values: One a record, `[n]` (*secret*).
      public: The values that there may be (*public*); None reads them from the data, and warns.

    Returns:
      The values `[K]` and codes `[n]` int32 (*secret*).

    Raises:
      ValueError: If a public value is given twice, or a record has another.
    """
    if public is None:
        warnings.warn(
            f"{name} is None: the values that occur are read from the data, which the guarantee "
            f"does not cover; pass {name}=, the values that are publicly known",
            PrivacyWarning,
            stacklevel=3,
        )
        labels, codes = np.unique(values, return_inverse=True)
        return labels, codes.reshape(-1).astype(np.int32)
    labels = np.unique(np.asarray(public))
    if np.shape(public) != labels.shape:
        raise ValueError(f"{name} must be distinct values of shape [K], got {public!r}")
    index = {label: code for code, label in enumerate(labels.tolist())}
    codes = np.array([index.get(value, -1) for value in values.tolist()], np.int32)
    if np.any(codes < 0):
        raise ValueError(
            f"{name} must hold every value that occurs: {np.sum(codes < 0)} of {len(codes)} "
            "records have another"
        )
    return labels, codes


def checked_rows(estimator: object, *given: Any, **options: object) -> Any:
    """What scikit-learn's `validate_data` returns; of a cell that is no number, nothing is said."""
    try:
        return validate_data(estimator, *given, **options)
    except ValueError as error:
        if "could not convert" in str(error):  # NumPy's message shows the cell
            raise ValueError("X must hold numbers, got text") from None
        raise


def public_size(num_records: int | None, relation: str, present: int) -> int:
    """The number of records that the guarantee may use: a public one.

    Raises:
      ValueError: If the relation is unknown, or keeps the number secret and none is given.
    """
    check_choice("relation", relation, RELATIONS)
    if num_records is None:
        if relation != "replace_one":
            raise ValueError(
                f"num_records is required under {relation}, where the number of records is "
                "secret: pass a public one"
            )
        return present
    check_int("num_records", num_records, minimum=1)
    return int(num_records)


def default_delta(num_records: int) -> float:
    """$n^{-3/2}$ of the public size, and at most 1e-5."""
    return min(1e-5, float(num_records) ** -1.5)


def with_options(candidates: Any, options: dict[str, Any]) -> Any:
    """Candidates; options that they leave open keep their values without tuning."""
    if callable(candidates):
        return lambda key: options | dict(candidates(key))
    if not isinstance(candidates, Mapping):
        raise TypeError(
            "tune must hold candidates, a dict of lists or a function of a key, got "
            f"{type(candidates).__name__}"
        )
    return {name: [value] for name, value in options.items()} | dict(candidates)
