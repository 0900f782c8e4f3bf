"""Reading columns of numbers from CSV files: plain, gzipped, or inside a zip archive."""

import csv
import gzip
import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import IO, cast

import numpy as np


@contextmanager
def open_member(path: Path, suffixes: tuple[str, ...]) -> Iterator[IO[bytes]]:
    """Opens a file, unpacking `.gz` and the one member of a `.zip` that ends in a suffix.

    Raises:
        ValueError: a zip archive does not hold exactly one such member.
    """
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.lower().endswith(suffixes)]
            if len(names) != 1:
                raise ValueError(
                    f"{path} must hold one file ending in {list(suffixes)}, "
                    f"got {archive.namelist()}"
                )
            with archive.open(names[0]) as file:
                yield file
    elif path.suffix == ".gz":
        with gzip.open(path, "rb") as unpacked:
            yield cast(IO[bytes], unpacked)
    else:
        with path.open("rb") as file:
            yield file


@contextmanager
def open_rows(
    path: Path, suffixes: tuple[str, ...] = (".csv",)
) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Opens a CSV file as `(header, rows)`; names in the header are stripped of blanks.

    Raises:
        ValueError: the file is empty.
    """
    with (
        open_member(path, suffixes) as raw,
        io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text,
    ):
        rows = csv.reader(text)
        header = next(rows, None)
        if header is None:
            raise ValueError(f"{path} must be a CSV file with a header, got an empty file")
        yield [name.strip() for name in header], rows


def read_columns(
    path: Path, columns: Sequence[str], suffixes: tuple[str, ...] = (".csv",)
) -> dict[str, np.ndarray]:
    """Reads some columns of a CSV file as float64 `[n]`; an empty field is NaN.

    Raises:
        ValueError: a column is missing, a record is short, or a field is not a number.
    """
    with open_rows(path, suffixes) as (header, rows):
        return parse_columns(str(path), header, rows, columns)


def parse_columns(
    name: str, header: Sequence[str], rows: Iterator[list[str]], columns: Sequence[str]
) -> dict[str, np.ndarray]:
    """Picks columns by name from records of text, as float64 `[n]`; an empty field is NaN.

    Raises:
        ValueError: a column is missing, a record is short, or a field is not a number.
    """
    missing = [column for column in columns if column not in header]
    if missing:
        raise ValueError(f"{name} must have the columns {missing}, got {list(header)}")
    pick = itemgetter(*(list(header).index(column) for column in columns))
    records: list[tuple[str, ...]] = []
    for row in rows:
        if not row:
            continue
        if len(row) < len(header):
            raise ValueError(
                f"{name} record {len(records) + 1} must have {len(header)} fields, got {len(row)}"
            )
        records.append(pick(row))
    fields = zip(*records, strict=True) if records else ((),) * len(columns)
    return {
        column: _numbers(name, column, values)
        for column, values in zip(columns, fields, strict=True)
    }


def _numbers(name: str, column: str, values: Sequence[str]) -> np.ndarray:
    try:
        return np.array([float(value or "nan") for value in values], np.float64)
    except ValueError:  # whose message shows the field
        raise ValueError(f"{name} column {column!r} must hold numbers, got text") from None


def check_codes(name: str, column: np.ndarray, allowed: tuple[int, ...]) -> None:
    """Raises ValueError, naming the number of others, unless every code is a documented one."""
    bad = ~np.isin(column, allowed)
    if np.any(bad):
        raise ValueError(
            f"{name} must be one of {list(allowed)}: {bad.sum()} of {bad.size} records are none"
        )
