"""Tables for query release, coded by public rules: no number here was read off the records."""

import csv
import json
from pathlib import Path

import numpy as np

from benchmarks.datasets import credit_default

# Codes as the data set documents them; what it does not document counts as "others".
_EDUCATION = {1: 0, 2: 1, 3: 2}  # graduate school, university, high school; 3 are the others
_MARRIAGE = {1: 0, 2: 1}  # married, single; 2 are the others


def adult_reduced(data_folder: Path | str) -> tuple[np.ndarray, dict[str, int]]:
    """Adult in seven categorical attributes: codes `[48842, 7]` int32, and codes per attribute.

    The table and its domain come as files, `adult-reduced.csv` (its columns in any order)
    and `adult-reduced-domain.json`. The universe has 336,000 cells.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A code is outside the domain.
    """
    folder = Path(data_folder)
    sizes = json.loads((folder / "adult-reduced-domain.json").read_text(encoding="utf-8"))
    with (folder / "adult-reduced.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    codes = np.array(rows, np.int32)[:, [header.index(name) for name in sizes]]
    return _checked(codes, sizes), sizes


def credit_reduced(data_folder: Path | str | None) -> tuple[np.ndarray, dict[str, int]]:
    """Default of credit card clients in eight attributes: codes `[30000, 8]` int32, and sizes.

    Credit limit and age in the bins of `benchmarks.datasets.credit_default`, sex, education and
    marriage as documented, months of delay of the last two payments (-2, -1, 0, 1, 2, 3, 4 and
    more), and default. The universe has 169,344 cells. It reads `credit_default.csv.gz` in the
    folder, or downloads the data where there is no folder.
    """
    path = None if data_folder is None else Path(data_folder) / "credit_default.csv.gz"
    table = credit_default(path)

    def block(column: str, separator: str) -> np.ndarray:
        at = [i for i, n in enumerate(table.feature_names) if n.startswith(column + separator)]
        return table.x[:, at]

    def merged(column: str, kept: dict[int, int]) -> np.ndarray:
        others = len(kept)
        indicators = block(column, "=")
        to = np.array([kept.get(code, others) for code in range(indicators.shape[1])], np.int32)
        return np.where(indicators.any(axis=1), to[indicators.argmax(axis=1)], others)

    binned = {column: block(column, ":") for column in ("LIMIT_BAL", "AGE", "PAY_0", "PAY_2")}
    columns = {
        "limit": (binned["LIMIT_BAL"].argmax(axis=1), binned["LIMIT_BAL"].shape[1]),
        "sex": (table.group, 2),
        "education": (merged("EDUCATION", _EDUCATION), len(_EDUCATION) + 1),
        "marriage": (merged("MARRIAGE", _MARRIAGE), len(_MARRIAGE) + 1),
        "age": (binned["AGE"].argmax(axis=1), binned["AGE"].shape[1]),
        "delay": (binned["PAY_0"].argmax(axis=1), binned["PAY_0"].shape[1]),
        "delay before": (binned["PAY_2"].argmax(axis=1), binned["PAY_2"].shape[1]),
        "default": (table.y, 2),
    }
    sizes = {name: size for name, (_, size) in columns.items()}
    codes = np.stack([values for values, _ in columns.values()], axis=1).astype(np.int32)
    return _checked(codes, sizes), sizes


def _checked(codes: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    for name, size, column in zip(sizes, sizes.values(), codes.T, strict=True):
        if column.min() < 0 or column.max() >= size:
            raise ValueError(
                f"codes of {name!r} must lie in [0, {size}), got {column.min()} to {column.max()}"
            )
    return codes
