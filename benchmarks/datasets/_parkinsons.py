"""Parkinsons telemonitoring: is a patient's total UPDRS score above the usual, from the voice?"""

import os

import numpy as np

from benchmarks.datasets._download import locate
from benchmarks.datasets._read import check_codes, read_columns
from benchmarks.datasets._scaled import Scaled
from dpjax.core._checks import check_finite
from dpjax.datasets import Dataset
from dpjax.datasets._dataset import (
    Bins,
    Block,
    Table,
    encode,
    feature_names,
    norm_bound,
)

_URL = "https://archive.ics.uci.edu/static/public/189/parkinsons+telemonitoring.zip"
_MEDIAN_UPDRS = 27.576

# Public ranges of voice measures: perturbation over decades (logarithm), the others linear.
# The file states jitter and shimmer as fractions, jitter (abs) in seconds, times in days.
_LOG_RANGES: dict[str, tuple[float, float]] = {
    "Jitter(%)": (1e-3, 1e-1),
    "Jitter(Abs)": (1e-6, 1e-3),
    "Jitter:RAP": (3e-4, 1e-1),
    "Jitter:PPQ5": (3e-4, 1e-1),
    "Jitter:DDP": (1e-3, 3e-1),
    "Shimmer": (3e-3, 3e-1),
    "Shimmer(dB)": (3e-2, 3.0),
    "Shimmer:APQ3": (1e-3, 3e-1),
    "Shimmer:APQ5": (1e-3, 3e-1),
    "Shimmer:APQ11": (1e-3, 3e-1),
    "Shimmer:DDA": (3e-3, 1.0),
    "NHR": (1e-4, 1.0),
}
_LINEAR_RANGES: dict[str, tuple[float, float]] = {
    "HNR": (0.0, 40.0),
    "RPDE": (0.0, 1.0),
    "DFA": (0.5, 1.0),
    "PPE": (0.0, 1.0),
    "test_time": (0.0, 200.0),
}
_BLOCKS: tuple[Block, ...] = (
    Bins("age", (0, 50, 55, 60, 65, 70, 75, 80)),
    *(Scaled(column, low, high, np.log) for column, (low, high) in _LOG_RANGES.items()),
    *(Scaled(column, low, high) for column, (low, high) in _LINEAR_RANGES.items()),
    Bins("HNR", (0, 12, 15, 18, 20, 22, 24, 26, 28)),
    Bins("RPDE", (0, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)),
    Bins("DFA", (0, 0.55, 0.6, 0.65, 0.7, 0.75)),
    Bins("PPE", (0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)),
)


def parkinsons(
    path: str | os.PathLike[str] | None = None,
    *,
    threshold: float = _MEDIAN_UPDRS,
    sha256: str | None = None,
) -> Dataset:
    """Parkinsons telemonitoring: total UPDRS above a threshold, from sixteen voice measures.

    Voice measures and test time are clipped to fixed ranges and scaled to [-1, 1]; age and four
    of the measures are one-hot in bins too. `motor_UPDRS`, a part of the score, is left out.

    **Privacy.** The features use public constants only. The *default threshold is not private*:
    27.576 is the median of this very file, a constant known from the published data and here
    fixed in code, which suits comparisons with published results and nothing else; hence
    `private_preprocessing` is True only with another threshold, chosen without the data.
    A patient has about 140 records: a guarantee for one record **is not one for a patient**.
    `subject` says whose a record is; random splits put every patient on both sides.

    Args:
        path: a local file: UCI's zip, its `parkinsons_updrs.data`, or that as CSV; plain, `.gz`
            or `.zip`. None downloads UCI's zip into the cache.
        threshold: *public*. Label 1 is `total_UPDRS > threshold`.
        sha256: the expected digest of that file, checked if given. The digest of a download is
            trusted on first use and verified from then on.

    Returns:
        Dataset with `x [5875, p]` float32, `y [5875]` int32 (1: 49.94 % by default),
        `group [5875]` int32 (0 female, 1 male; UCI codes 0 male, 1 female) and `subject [5875]`
        int32, 42 patients.

    Raises:
        ConnectionError: no download; the message says how to get the file by hand.
        ValueError: a wrong digest, a missing column, a code of sex not documented, or a
            threshold or subject that is not finite.

    Example:
        >>> from benchmarks.datasets import parkinsons
        >>> d = parkinsons("parkinsons_updrs.data")  # doctest: +SKIP
        >>> len(d), len(set(d.subject.tolist()))  # doctest: +SKIP
        (5875, 42)

    Source: A. Tsanas and M. Little, Parkinsons Telemonitoring, UCI Machine Learning Repository,
    2009, https://doi.org/10.24432/C5ZS3N. Licence: CC BY 4.0.
    """
    check_finite("threshold", threshold)
    file = locate(path, _URL, "parkinsons_telemonitoring.zip", sha256)
    columns = ("subject#", "sex", "total_UPDRS", "age", *_LOG_RANGES, *_LINEAR_RANGES)
    table = read_columns(file, columns, (".data", ".csv"))
    check_codes("sex", table["sex"], (0, 1))
    check_finite("subject#", table["subject#"])
    x, names = _features(table)
    by_median = threshold == _MEDIAN_UPDRS
    return Dataset(
        x=x,
        y=(table["total_UPDRS"] > threshold).astype(np.int32),
        group=(1 - table["sex"]).astype(np.int32),
        feature_names=names,
        label_names=(f"total_UPDRS<={threshold}", f"total_UPDRS>{threshold}"),
        group_names=("female", "male"),
        norm_bound=norm_bound(_BLOCKS),
        name="parkinsons",
        source="https://doi.org/10.24432/C5ZS3N",
        licence="CC BY 4.0",
        private_preprocessing=not by_median,
        note=(
            "About 140 records a patient: guarantees are for records, not for patients. "
            + ("The threshold is the published median of this file: not private." * by_median)
        ),
        subject=table["subject#"].astype(np.int32),
    )


def _features(table: Table) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encodes columns under their official names as `x [n, p]` float32, with feature names."""
    return encode(table, _BLOCKS), feature_names(_BLOCKS)
