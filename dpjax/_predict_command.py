"""`python -m dpjax predict`: a model of `fit --output`, applied to the rows of a CSV file."""

import argparse
import csv
import sys
from pathlib import Path

from dpjax._csv_files import columns_of, read_rows
from dpjax.api import load


def run(argv: list[str]) -> None:
    """Runs the command: writes a CSV file, or prints it."""
    parser = argparse.ArgumentParser(
        prog="python -m dpjax predict",
        description="Adds a column of predictions to the rows of a CSV file. Predictions for "
        "secret rows are as secret as the rows themselves.",
    )
    add = parser.add_argument
    add("model", type=Path, help="file of `python -m dpjax fit --output`")
    add("data", type=Path, help="CSV file with a header; the target may be absent")
    add("--output", type=Path, metavar="FILE", help="CSV file to write (default: to stdout)")
    args = parser.parse_args(argv)
    fitted = load(args.model)
    model, missing = fitted.model, fitted.table["missing"]
    header, rows = read_rows(args.data)
    domain = model.domain.project(model.inputs)
    values = fitted.predict(columns_of(args.data, header, rows, domain, missing))
    added = [f"predicted {model.target}", *map(str, values)]
    table = [[*row, value] for row, value in zip([header, *rows], added, strict=True)]
    if args.output:
        with args.output.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    else:
        csv.writer(sys.stdout, lineterminator="\n").writerows(table)
