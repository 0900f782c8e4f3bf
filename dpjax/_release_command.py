"""`python -m dpjax release`: private tables and synthetic rows of a CSV file."""

import argparse
import csv
import itertools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax import _csv_files as files
from dpjax.api import PersonRecords, Release, release
from dpjax.api._released import NUMBERS_OF_A_TABLE
from dpjax.core import check_int
from dpjax.queries import Domain, Marginals

_SHOWN = 20


def run(argv: list[str]) -> None:
    """Runs the command: prints tables, and writes synthetic rows."""
    args = _parser().parse_args(argv)
    if (args.unit is None) != (args.max_rows is None):
        raise ValueError("--unit and --max-rows must be given together")
    if args.rows is not None:
        check_int("rows", args.rows, minimum=1)
    files.check_output(args.output)
    args.relation = args.relation or ("add_or_remove_one" if args.unit else "replace_one")
    domain = Domain.from_json(args.schema)
    header, rows = files.read_rows(args.data)
    table = files.columns_of(args.data, header, rows, domain, args.missing)
    data: object = table
    if args.unit:
        if args.unit not in header:
            raise ValueError(f"{args.data} lacks column {args.unit!r}: it has {header}")
        at, absent = header.index(args.unit), frozenset(args.missing)
        texts = (row[at].strip() for row in rows)
        owners = np.array([None if text in absent else text for text in texts], object)
        data = PersonRecords(table, unit=owners, max_rows=args.max_rows)
    asked = [tuple(name.strip() for name in names.split(",")) for names in args.tables or ()]
    shown = asked or [(name,) for name in domain.attributes]
    # what a table could not show is told before anything is spent
    taken = sorted({name for names in shown for name in names} & set(NUMBERS_OF_A_TABLE))
    if taken:
        raise ValueError(
            f"columns named {taken} cannot be shown beside those of a table: rename them"
        )
    budget, size = files.budget_of(args, len(rows))
    key, for_rows = jax.random.split(files.key_of(args))
    released = release(
        Marginals(domain, asked) if asked else domain,
        data,
        budget,
        key=key,
        num_records=size,
        target=args.target,
    )
    wanted = size if args.rows is None else args.rows
    written = _write(released, args, wanted, for_rows) if args.output else 0
    tables = [released.table(*names) for names in shown]
    result = files.results(args, budget, size, released) | {
        "total": released.total,
        "max_rows": args.max_rows,
        "tables": [{name: _plain(column) for name, column in each.items()} for each in tables],
        "rows": written,
    }
    print(json.dumps(result) if args.json else _summary(result))


def _parser() -> argparse.ArgumentParser:
    made = files.parser("release", "Private tables of counts, and synthetic rows, of a CSV file.")
    made.set_defaults(relation=None)
    add = made.add_argument
    add(
        "--tables",
        nargs="+",
        metavar="COLUMNS",
        help="tables to measure and to print, such as age,sex job: names with commas between "
        "(default: all of two columns are measured, and each column's printed)",
    )
    add(
        "--target",
        metavar="COLUMN",
        help="what models trained on the rows are to predict: its tables are measured best",
    )
    add("--output", type=Path, metavar="FILE", help="CSV file of synthetic rows to write")
    add("--rows", type=int, metavar="N", help="how many of them (default: the number of records)")
    add(
        "--unit",
        metavar="COLUMN",
        help="whose row it is: privacy is per person, under add_or_remove_one, and --num-records "
        "a public number near that of rows kept",
    )
    add("--max-rows", type=int, metavar="K", help="rows kept of a person; required with --unit")
    return made


def _write(released: Release, args: argparse.Namespace, number: int, key: jax.Array) -> int:
    """A CSV file of synthetic rows, whose number it returns; `fit` reads it by the same schema."""
    columns = {n: _plain(c) for n, c in released.sample_frame(number, key=key).items()}
    absent = "" if "" in args.missing or not args.missing else args.missing[0]
    with args.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(absent if value is None else value for value in row)
    return number


def _plain(column: np.ndarray) -> list[Any]:
    """Numbers, texts and None of a column; days as ISO dates."""
    if np.issubdtype(column.dtype, np.datetime64):
        return [None if np.isnat(day) else str(day) for day in column]
    values = column.tolist()
    return [None if isinstance(v, float) and math.isnan(v) else v for v in values]


def _summary(result: dict[str, Any]) -> str:
    unit = f", per person of at most {result['max_rows']} rows" if result["max_rows"] else ""
    lines = files.heading(result)
    lines[-1] += unit
    for table in result["tables"]:
        *names, _, _, _ = table
        cells = list(zip(*(table[name] for name in names), strict=True))
        labels = [", ".join("missing" if v is None else str(v) for v in cell) for cell in cells]
        lines += ["", f"{', '.join(names):40} {'count':>12} {'standard error':>14}"]
        rows = zip(labels, table["count"], table["stddev"], strict=True)
        for label, count, error in itertools.islice(rows, _SHOWN):
            shown = "unknown" if error is None else f"{error * result['total']:.1f}"
            lines.append(f"{label:40} {count:12.1f} {shown:>14}")
        if len(cells) > _SHOWN:
            lines.append(f"and {len(cells) - _SHOWN} cells more: see --json")
    if result["output"]:
        lines += ["", f"synthetic rows: {result['rows']} in {result['output']}"]
    return "\n".join(lines)
