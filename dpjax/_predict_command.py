"""`python -m dpjax predict`: a model of `fit --output`, applied to the rows of a CSV file."""

import argparse
import csv
import json
import sys
import zipfile
from pathlib import Path

from dpjax._csv_files import columns_of, read_rows
from dpjax._fit_command import TABLE
from dpjax.api import load
from dpjax.api._table_model import TableModel
from dpjax.queries import Domain


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
    with zipfile.ZipFile(args.model) as file:
        if TABLE not in file.namelist():
            raise ValueError(
                f"{args.model} must be a file of `python -m dpjax fit --output`: no schema"
            )
        told = json.loads(file.read(TABLE))
    model = TableModel(Domain.from_json(told["schema"]), told["target"])
    header, rows = read_rows(args.data)
    domain = model.domain.project(model.inputs)
    values = model.predict(
        fitted.params, columns_of(args.data, header, rows, domain, told["missing"])
    )
    added = [f"predicted {model.target}", *map(str, values)]
    table = [[*row, value] for row, value in zip([header, *rows], added, strict=True)]
    if args.output:
        with args.output.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    else:
        csv.writer(sys.stdout, lineterminator="\n").writerows(table)
