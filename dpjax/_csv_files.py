"""What the commands on a CSV file share: their options, and the columns that they read."""

import argparse
import csv
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax.api import Fitted, Release
from dpjax.api._public_size import default_delta, public_size
from dpjax.core import check_int
from dpjax.privacy import Budget
from dpjax.queries import Date, Domain, Numeric
from dpjax.random import secret_key

_LARGEST_EPSILON = 500
MISSING = ("", "NA", "NaN", "null", "?")
_SCHEMA = """\
The schema says what each column may hold, from a codebook and never from the data:
  {"version": 1, "columns": {
    "age": {"kind": "numeric", "low": 17, "high": 90, "integer": true, "missing": true},
    "sex": {"kind": "categorical", "labels": ["F", "M"]},
    "job": {"kind": "categorical", "labels": ["clerk", "cook"], "other": "other"},
    "day": {"kind": "date", "start": "2020-01-01", "end": "2020-12-31"}}}
Columns that it does not name are left out. Schema, epsilon, delta, and under replace_one the number
of rows are public.
"""


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """The options of a command that spends a budget on a CSV file."""
    shown = ", ".join(text for text in MISSING if text)
    made = argparse.ArgumentParser(
        prog=f"python -m dpjax {command}",
        description=description,
        epilog=_SCHEMA,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("data", type=Path, help="CSV file with a header (secret)")
    add("--schema", type=Path, required=True, help="JSON file: see below", metavar="FILE")
    add("--epsilon", type=float, required=True, help="privacy loss, > 0")
    add(
        "--delta",
        type=float,
        help="failure probability, in [0, 1) (default: n^-1.5, at most 1e-5; n: number of rows)",
    )
    add(
        "--relation",
        choices=("replace_one", "add_or_remove_one"),
        default="replace_one",
        help="which tables are neighbours (default: replace_one)",
    )
    add(
        "--num-records",
        type=int,
        metavar="N",
        help="public number near that of rows (default: their number; required with "
        "add_or_remove_one, which keeps it secret)",
    )
    add(
        "--missing",
        nargs="+",
        action="extend",
        default=list(MISSING),
        metavar="TEXT",
        help=f"texts that stand for a missing value, beside the empty one, {shown}",
    )
    what = "without those texts; give it before --missing"
    add("--no-missing", action="store_const", const=[], dest="missing", help=what)
    add("--seed", type=int, help="repeats a run, for trials on public data (default: a secret key)")
    add("--json", action="store_true", help="print one JSON object to stdout")
    return made


def budget_of(args: argparse.Namespace, rows: int) -> tuple[Budget, int]:
    """Budget and public number of records, of a file of so many rows."""
    size = public_size(args.num_records, args.relation, rows, bounds=False, name="--num-records")
    check_int("--num-records", size, minimum=1)
    if args.epsilon > _LARGEST_EPSILON:
        raise ValueError(
            f"--epsilon must be at most {_LARGEST_EPSILON}, got {args.epsilon:g}: no guarantee "
            "tells what is above from no privacy"
        )
    delta = default_delta(size) if args.delta is None else args.delta
    return Budget(args.epsilon, delta, args.relation), size


def results(
    args: argparse.Namespace, budget: Budget, size: int, made: Fitted | Release
) -> dict[str, Any]:
    """What commands tell of what they made, of so many records."""
    return {
        "data": str(args.data),
        "num_records": size,
        "method": made.method,
        "reason": made.reason,
        "epsilon": made.guarantee.epsilon(budget.delta),
        "delta": budget.delta,
        "relation": args.relation,
        "output": str(args.output) if args.output else None,
    }


def heading(result: dict[str, Any]) -> list[str]:
    """The first two lines of the text of `results`."""
    return [
        f"{result['method']}: {result['reason']}",
        f"epsilon {result['epsilon']:.4g}, delta {result['delta']:.3g}, {result['relation']}, "
        f"{result['num_records']} records",
    ]


def check_output(path: Path | None) -> None:
    """Raises where a file could not be written, before anything is spent."""
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"--output must lie in a folder that exists, got {path}")
    if path is not None and path.is_dir():
        raise ValueError(f"--output must be a file, got the folder {path}")


def key_of(args: argparse.Namespace) -> jax.Array:
    """Secret, unless a seed is given."""
    if args.seed is None:
        return secret_key()
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed must lie in [0, 2^63), got {args.seed}")
    return jax.random.key(args.seed)


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, texts all, without empty lines; raises as `read_csv`.

    In a file of one column an empty line is a row without a value, so that their number does not
    follow from values.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error):  # whose message shows a byte and its place
        raise ValueError(
            f"{path} must be a table of comma-separated text in UTF-8, with no field above "
            f"{csv.field_size_limit()} characters"
        ) from None
    header, rows = ([name.strip() for name in rows[0]], rows[1:]) if rows else ([], [])
    rows = [row or [""] for row in rows] if len(header) == 1 else [row for row in rows if row]
    wrong = sum(len(row) != len(header) for row in rows)
    if wrong:
        raise ValueError(
            f"{path}: rows must have {len(header)} fields, as the header, got {wrong} others"
        )
    return header, rows


def read_csv(path: Path, domain: Domain, missing: list[str]) -> dict[str, np.ndarray]:
    """The columns of a domain `[n]` of a CSV file: numbers, days or texts of labels; None: missing.

    Args:
      path: Of the file; its first row has the names.
      domain: The schema (*public*).
      missing: Texts that stand for a missing value, blanks around them left out.

    Raises:
      ValueError: If it is no text, a column is not there, a row has another length, or a value is
        of another kind; the message names column and number of rows, and no value.
    """
    return columns_of(path, *read_rows(path), domain, missing)


def columns_of(
    path: Path, header: list[str], rows: list[list[str]], domain: Domain, missing: list[str]
) -> dict[str, np.ndarray]:
    """The columns of `read_csv`, from what `read_rows` gives; raises as it does."""
    absent = frozenset(missing)
    table = {}
    for name, kind in domain.spec:
        if name not in header:
            # the names of columns may be all in one
            signs = [sign for sign in (";", "\t", "|") if len(header) == 1 and sign in header[0]]
            hint = f"; write commas between columns for {signs[0]!r}" if signs else ""
            raise ValueError(f"{path} lacks column {name!r}: it has {header}{hint}")
        if (number := header.count(name)) > 1:
            raise ValueError(f"{path} has {number} columns {name!r}: rename all but one")
        at = header.index(name)
        texts = (row[at].strip() for row in rows)
        convert, bad = _converter(kind), 0
        column = np.full(len(rows), None, object)
        for i, text in enumerate(texts):
            if text not in absent:
                try:
                    column[i] = convert(text)
                except (ValueError, OverflowError):
                    bad += 1
        if bad:
            what = "numbers" if isinstance(kind, Numeric) else "days such as 2020-01-31"
            raise ValueError(
                f"column {name!r} must hold {what}: {bad} of {len(rows)} rows do not; list texts "
                "that stand for missing values after --missing"
            )
        table[name] = column
    return table


def _converter(kind: object) -> Callable[[str], object]:
    """From text to the values of a column."""
    if isinstance(kind, Numeric):
        return float if not kind.integer else _integer
    if isinstance(kind, Date):
        return _day
    return int if isinstance(kind, int) else str


def _day(text: str) -> datetime.date:
    """Of an ISO date or time without a zone: a bare number is a year to NumPy."""
    when = datetime.datetime.fromisoformat(text)
    if when.tzinfo is not None:
        raise ValueError("a day depends on the time zone")
    return when.date()


def _integer(text: str) -> float:
    """Exactly, also beyond 2^53; a fraction is left to the column."""
    try:
        return int(text)
    except ValueError:
        return float(text)
