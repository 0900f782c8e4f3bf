"""`python -m dpjax fit`: private training on a CSV file, by the method that `dpjax.fit` chooses."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from dpjax._csv_files import budget_of, check_output, heading, key_of, parser, read_csv, results
from dpjax.api import fit
from dpjax.api._plan import Candidate, table_of
from dpjax.api._table_model import TableModel, ends
from dpjax.queries import Domain

_SHOWN = 20


def run(argv: list[str]) -> None:
    """Runs the command, and prints what it found."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    domain = Domain.from_json(args.schema)
    model = TableModel(domain, args.target)
    records = model.records(read_csv(args.data, domain, args.missing))
    budget, size = budget_of(args, len(records["y"]))
    fitted = fit(
        model.problem, records, budget, key=key_of(args), num_records=size, method=args.method
    )
    if args.output:
        told = {"schema": domain.to_json(), "target": args.target, "missing": args.missing}
        dataclasses.replace(fitted, table=told).save(args.output)
    params = fitted.params  # of several classes a list of weights for each feature
    w, b = (params["w"], params["b"]) if isinstance(params, dict) else (params[:-1], params[-1])
    weights = dict(zip(model.names, (np.asarray(w) / model.norm).tolist(), strict=True))
    result = results(args, budget, size, fitted) | {
        "target": args.target,
        "classes": model.classes,
        "coefficients": weights | {"intercept": np.asarray(b).tolist()},
        "considered": [candidate._asdict() for candidate in fitted.considered],
    }
    if args.test:
        test = model.records(read_csv(args.test, domain, args.missing))
        known = ~np.isnan(test["y"])
        y, guesses = test["y"][known], model.guesses(params, test["x"][known])
        result["test"] = {"rows": len(y), "error": float(np.mean(guesses != y))}
        if model.regression:
            low, high = ends(dict(domain.spec)[args.target])
            error = (high - low) / 2 * float(np.sqrt(np.mean((guesses - y) ** 2)))
            result["test"] = {"rows": len(y), "rmse": error}
    print(json.dumps(result) if args.json else _summary(result))


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "fit", "Private training on a CSV file: a linear model of a column given the others."
    )
    add = made.add_argument
    add("--target", required=True, help="column to predict", metavar="COLUMN")
    add(
        "--method",
        default="auto",
        help="a method of the table printed at the end (default: the first of it)",
    )
    add("--test", type=Path, metavar="FILE", help="CSV file of public rows to report errors on")
    add("--output", type=Path, metavar="FILE", help="where to keep the model, for `predict`")
    return made


def _summary(result: dict[str, Any]) -> str:
    classes = result["classes"]
    toward = classes[1:] if len(classes) == 2 else classes
    lines = [
        *heading(result),
        "",
        f"{'feature':32} weight on scaled values, numbers from -1 to 1"
        + (", for " + ", ".join(toward) if toward else ""),
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
