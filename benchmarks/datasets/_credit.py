"""Default of credit card clients: does a Taiwanese card holder default next month (2005)?"""

import importlib
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.datasets._download import locate
from benchmarks.datasets._read import check_codes, open_member, open_rows, parse_columns
from benchmarks.datasets._scaled import Scaled, signed_log
from dpjax.datasets import Dataset
from dpjax.datasets._dataset import (
    Bins,
    Block,
    OneHot,
    Table,
    encode,
    feature_names,
    norm_bound,
)

_URL = "https://archive.ics.uci.edu/static/public/350/default+of+credit+card+clients.zip"
_PAY = ("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6")
_BILL = tuple(f"BILL_AMT{month}" for month in range(1, 7))
_PAID = tuple(f"PAY_AMT{month}" for month in range(1, 7))
_OFFICIAL = ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *_PAY, *_BILL, *_PAID)
_EDUCATION, _MARRIAGE = tuple(range(7)), tuple(range(4))
_LABEL = "default"

# Public bounds: Taiwan dollars up to a million, ages by decade and half decade, months of delay
# (-2 no use, -1 paid in full, 0 revolving, 1 and more: months late, 4 and more together).
_BLOCKS: tuple[Block, ...] = (
    Bins("LIMIT_BAL", (0, 30000, 60000, 100000, 150000, 200000, 300000, 400000, 500000)),
    OneHot("EDUCATION", _EDUCATION),
    OneHot("MARRIAGE", _MARRIAGE),
    Bins("AGE", (0, 25, 30, 35, 40, 45, 50, 60)),
    *(Bins(column, (-2, -1, 0, 1, 2, 3, 4)) for column in _PAY),
    *(Scaled(column, -1e6, 1e6, signed_log) for column in _BILL),
    *(Scaled(column, 0.0, 1e6, signed_log) for column in _PAID),
)

_NOTE = (
    "Every row of x is computed from its own record with public bounds and vocabularies. A code "
    "outside the vocabulary gives an all-zero block."
)


def credit_default(
    path: str | os.PathLike[str] | None = None, *, sha256: str | None = None
) -> Dataset:
    """Default of credit card clients (Taiwan, 2005), encoded with public constants only.

    One-hot bins for limit, age and the six repayment states, one-hot education and marriage, and
    the twelve amounts as `sign(v) log(1 + |v|)`, clipped to a million and scaled to [-1, 1].

    **Privacy.** No statistic of the data enters the encoding. `feature_names` and `norm_bound`
    are *public*; `x`, `y` and `group` are *secret*.

    Args:
        path: a local file: UCI's zip or xls (which needs the package `xlrd`), a CSV export of it
            (columns named, or X1 to X23 and Y, or both), or a CSV with one-hot `EDUCATION_0..6`
            and `MARRIAGE_0..3`, where SEX is 1 for female and 0 for male; plain, `.gz` or `.zip`.
            None downloads UCI's zip into the cache.
        sha256: the expected digest of that file, checked if given. The digest of a download is
            trusted on first use and verified from then on.

    Returns:
        Dataset with `x [30000, p]` float32, `y [30000]` int32 (1: default, 22.12 %) and
        `group [30000]` int32 (0 female, 1 male).

    Raises:
        ConnectionError: no download; the message says how to get the file by hand.
        ImportError: the file is an xls and `xlrd` is not installed.
        ValueError: a wrong digest, a missing column, or a code of sex or label not documented.

    Example:
        >>> from benchmarks.datasets import credit_default
        >>> d = credit_default("credit_default.csv.gz")  # doctest: +SKIP
        >>> len(d), int(d.y.sum())  # doctest: +SKIP
        (30000, 6636)

    Source: I-C. Yeh, Default of Credit Card Clients, UCI Machine Learning Repository, 2009,
    https://doi.org/10.24432/C55S3H. Licence: CC BY 4.0.
    """
    if path is None:
        _xlrd()
    table = _read_table(locate(path, _URL, "credit_default.zip", sha256))
    check_codes(_LABEL, table[_LABEL], (0, 1))
    x, names = _features(table)
    return Dataset(
        x=x,
        y=table[_LABEL].astype(np.int32),
        group=(table["SEX"] == 1).astype(np.int32),
        feature_names=names,
        label_names=("no default", "default"),
        group_names=("female", "male"),
        norm_bound=norm_bound(_BLOCKS),
        name="credit_default",
        source="https://doi.org/10.24432/C55S3H",
        licence="CC BY 4.0",
        note=_NOTE,
    )


def _features(table: Table) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encodes columns under their official names as `x [n, p]` float32, with feature names."""
    return encode(table, _BLOCKS), feature_names(_BLOCKS)


def _read_table(path: Path) -> dict[str, np.ndarray]:
    """The official columns and `default`, with SEX 1 male and 2 female, from any known format."""
    if path.suffix == ".xls" or (path.suffix == ".zip" and _holds_xls(path)):
        header, rows = _sheet(path)
        return _parse(str(path), header, rows)
    with open_rows(path) as (header, rows):
        return _parse(str(path), header, rows)


def _parse(name: str, header: Sequence[str], rows: Iterator[list[str]]) -> dict[str, np.ndarray]:
    if "X1" in header:
        official = {f"X{i}": column for i, column in enumerate(_OFFICIAL, 1)} | {"Y": _LABEL}
        header = [official.get(column, column) for column in header]
        rows = (row for row in rows if "LIMIT_BAL" not in row)  # the second of two header lines
    header = [_LABEL if re.match(r"default\W+payment", column) else column for column in header]
    header = ["PAY_0" if column == "PAY_1" else column for column in header]
    if "EDUCATION_0" not in header:
        table = parse_columns(name, header, rows, (*_OFFICIAL, _LABEL))
        check_codes("SEX", table["SEX"], (1, 2))
        return table
    education = [f"EDUCATION_{code}" for code in _EDUCATION]
    marriage = [f"MARRIAGE_{code}" for code in _MARRIAGE]
    plain = [column for column in _OFFICIAL if column not in ("EDUCATION", "MARRIAGE")]
    table = parse_columns(name, header, rows, (*plain, *education, *marriage, _LABEL))
    for column, parts in (("EDUCATION", education), ("MARRIAGE", marriage)):
        coded = np.stack([table.pop(part) for part in parts], axis=1)
        table[column] = np.where(coded.any(axis=1), coded.argmax(axis=1), -1).astype(np.float64)
    check_codes("SEX", table["SEX"], (0, 1))
    table["SEX"] = 1.0 + table["SEX"]  # this format: 0 male, 1 female
    return table


def _holds_xls(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(name.lower().endswith(".xls") for name in archive.namelist())


def _sheet(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """Header and records, as text, of the first sheet of an xls file."""
    with open_member(path, (".xls",)) as file:
        sheet = _xlrd().open_workbook(file_contents=file.read()).sheet_by_index(0)
    header, *rows = ([str(cell) for cell in sheet.row_values(i)] for i in range(sheet.nrows))
    return header, iter(rows)


def _xlrd() -> Any:
    try:
        return importlib.import_module("xlrd")
    except ImportError as error:
        raise ImportError(
            "credit_default reads UCI's .xls file with the package xlrd, which is not installed: "
            f"`pip install xlrd`, or download {_URL}, save the sheet inside as CSV and pass "
            "path= to that file"
        ) from error
