"""`python -m dpjax fit`: private training on a CSV file, by the method that `dpjax.fit` chooses."""

import argparse
import csv
import datetime
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax.api import Fitted, fit
from dpjax.api._plan import Candidate, table_of
from dpjax.api._table_model import Features, TableModel, ends
from dpjax.privacy import Budget
from dpjax.queries import Categorical, Date, Domain, Numeric
from dpjax.random import secret_key

TABLE = "table.json"  # schema and target, in the file of a model
MISSING = ("", "NA", "NaN", "null", "?")
_SHOWN = 20
_EPILOG = """\
The schema says what each column may hold, from a codebook and never from the data:
  {"version": 1, "columns": {
    "age": {"kind": "numeric", "low": 17, "high": 90, "integer": true, "missing": true},
    "sex": {"kind": "categorical", "labels": ["F", "M"]},
    "job": {"kind": "categorical", "labels": ["clerk", "cook"], "other": "other"},
    "day": {"kind": "date", "start": "2020-01-01", "end": "2020-12-31"}}}
Columns that it does not name are left out. Schema, epsilon, delta, and under replace_one the number
of rows are public.
"""


def run(argv: list[str]) -> None:
    """Runs the command, and prints what it found."""
    args = _parser().parse_args(argv)
    result = _fitted(args)
    print(json.dumps(result) if args.json else _summary(result))


def _parser() -> argparse.ArgumentParser:
    shown = ", ".join(text for text in MISSING if text)
    parser = argparse.ArgumentParser(
        prog="python -m dpjax fit",
        description="Private training on a CSV file: a linear model of a column given the others.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("data", type=Path, help="CSV file with a header (secret)")
    add("--schema", type=Path, required=True, help="JSON file: see below", metavar="FILE")
    add("--target", required=True, help="column to predict", metavar="COLUMN")
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
        "--method",
        default="auto",
        help="a method of the table printed at the end (default: the first of it)",
    )
    add("--test", type=Path, metavar="FILE", help="CSV file of public rows to report errors on")
    add(
        "--missing",
        nargs="*",
        default=list(MISSING),
        metavar="TEXT",
        help=f"texts that stand for a missing value (default: the empty one, {shown})",
    )
    add("--output", type=Path, metavar="FILE", help="where to keep the model, for `predict`")
    add("--seed", type=int, help="repeats a run, for trials on public data (default: a secret key)")
    add("--json", action="store_true", help="print one JSON object to stdout")
    return parser


def _fitted(args: argparse.Namespace) -> dict[str, Any]:
    domain = Domain.from_json(args.schema)
    model = TableModel(domain, args.target)
    records = model.records(read_csv(args.data, domain, args.missing))
    size = args.num_records
    if size is None:
        if args.relation != "replace_one":
            raise ValueError(
                f"--num-records is required with --relation {args.relation}: the number of rows is "
                "secret then"
            )
        size = len(records["y"])
    delta = min(1e-5, size**-1.5) if args.delta is None else args.delta
    fitted = fit(
        model.problem,
        records,
        Budget(args.epsilon, delta, args.relation),
        key=secret_key() if args.seed is None else jax.random.key(args.seed),
        num_records=size,
        method=args.method,
    )
    if args.output:
        fitted.save(args.output)
        with zipfile.ZipFile(args.output, "a") as file:
            told = {"schema": domain.to_json(), "target": args.target, "missing": args.missing}
            file.writestr(TABLE, json.dumps(told))
    result: dict[str, Any] = {
        "data": str(args.data),
        "num_records": size,
        "target": args.target,
        "method": fitted.method,
        "reason": fitted.reason,
        "epsilon": fitted.guarantee.epsilon(delta),
        "delta": delta,
        "relation": args.relation,
        "coefficients": _coefficients(model, fitted),
        "considered": [candidate._asdict() for candidate in fitted.considered],
        "output": str(args.output) if args.output else None,
    }
    if args.test:
        test = model.records(read_csv(args.test, domain, args.missing))
        result["test"] = _errors(model, fitted, test)
    return result


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, texts all, without empty lines; raises as `read_csv`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error):  # whose message shows a byte and its place
        raise ValueError(
            f"{path} must be a table of comma-separated text in UTF-8, with no field above "
            f"{csv.field_size_limit()} characters"
        ) from None
    header, rows = ([name.strip() for name in rows[0]], rows[1:]) if rows else ([], [])
    rows = [row for row in rows if row]
    wrong = sum(len(row) != len(header) for row in rows)
    if wrong:
        raise ValueError(
            f"{path}: rows must have {len(header)} fields, as the header, got {wrong} others"
        )
    return header, rows


def read_csv(path: Path, domain: Domain, missing: list[str]) -> dict[str, np.ndarray]:
    """The columns of a domain `[n]` from a CSV file, each as its kind of values, None if missing.

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
            raise ValueError(f"{path} lacks column {name!r}: it has {header}")
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
    labels = kind.texts if isinstance(kind, Categorical) else kind
    known = {str(label): label for label in labels} if isinstance(labels, tuple) else None
    return int if known is None else lambda text: known.get(text, text)


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


def _coefficients(model: TableModel, fitted: Fitted) -> dict[str, Any]:
    """Weights of the features, by name, and the intercept; of several classes, a list each."""
    params = fitted.params
    w, b = (params["w"], params["b"]) if isinstance(params, dict) else (params[:-1], params[-1])
    return {
        **dict(zip(model.names, (np.asarray(w) / model.norm).tolist(), strict=True)),
        "intercept": np.asarray(b).tolist(),
    }


def _errors(model: TableModel, fitted: Fitted, test: Features) -> dict[str, float]:
    """On public rows: of a number the root of the mean squared error, else the share wrong."""
    y, guesses = test["y"], model.guesses(fitted.params, test["x"])
    if not model.regression:
        return {"rows": len(y), "error": float(np.mean(guesses != y))}
    low, high = ends(dict(model.domain.spec)[model.target])
    return {"rows": len(y), "rmse": (high - low) / 2 * float(np.sqrt(np.mean((guesses - y) ** 2)))}


def _summary(result: dict[str, Any]) -> str:
    lines = [
        f"{result['method']}: {result['reason']}",
        f"epsilon {result['epsilon']:.4g}, delta {result['delta']:.3g}, {result['relation']}, "
        f"{result['num_records']} records",
        "",
        f"{'feature':32} weight on scaled values, numbers from -1 to 1",
    ]
    rows = {name: np.atleast_1d(weight) for name, weight in result["coefficients"].items()}
    longest = sorted(rows, key=lambda name: -float(np.abs(rows[name]).max()))
    for name in longest[:_SHOWN]:
        lines.append(f"{name:32} " + " ".join(f"{each:+.4f}" for each in rows[name]))
    if len(rows) > _SHOWN:
        lines.append(f"and {len(rows) - _SHOWN} smaller ones: see --json")
    lines.append("")
    lines.append(table_of(tuple(Candidate(**each) for each in result["considered"])))
    for name, value in result.get("test", {}).items():
        lines.append(f"{'test ' + name:32} {value:.6g}")
    if result["output"]:
        lines.append(f"model: {result['output']}")
    return "\n".join(lines)
