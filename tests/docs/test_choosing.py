"""Every number that docs/choosing.md shows is that of a committed run, or of a plan."""

import re
from pathlib import Path

import numpy as np

import dpjax
from benchmarks import _regret_studies, _runner, group_risk
from benchmarks._text import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "choosing.md"


def fresh():
    """Regret by kind of problem, and where it is largest."""
    every = _runner.load("regret")["regret"]
    lines = []
    for kind in [*dict.fromkeys(row["kind"] for row in every), None]:
        rows = [row for row in every if kind in (None, row["kind"])]
        values = [row["regret"] for row in rows]
        worst = max(rows, key=lambda row: row["regret"])
        there = f"{worst['name']}, epsilon {worst['epsilon']:g}: `{worst['best']}`"
        quantiles = [f"{np.quantile(values, q):.2f}" for q in (0.5, 0.9, 1)]
        where = there if kind and worst["regret"] > 1 else ""
        lines.append([kind or "all", f"{len(rows)}", *quantiles, where])
    return table(["problem", "cells", "median", "90th percentile", "worst", "there"], lines)


def studies():
    return _regret_studies.summary(_regret_studies.rows())


def test_the_tables_are_those_of_the_committed_runs():
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [one.strip() for one in found] == [fresh(), studies()]


def test_the_plan_is_what_is_printed():
    text = PAGE.read_text(encoding="utf-8")
    problem = dpjax.problems.LinearModel("logistic", num_features=10, radius=2.0)
    plan = dpjax.plan(problem, num_records=4_000, budget=dpjax.Budget(1.0, 1e-5, "replace_one"))
    (shown,) = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
    assert shown == repr(plan)


def test_the_prose_has_no_result():
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not re.findall(r"\d\.\d+", re.sub(r"^\|.*$", "", text, flags=re.MULTILINE))


def test_what_the_page_says_is_so():
    rows = {(row.study, row.cell): row for row in _regret_studies.rows()}
    nonsmooth = [row for row in rows.values() if row.study == "nonsmooth"]
    linear = [row for row in nonsmooth if not row.cell.startswith("network")]
    assert {row.chosen for row in linear} == {"ours"}
    assert len(linear) == 8

    result = _runner.load("group_risk")
    for epsilon in group_risk.EPSILONS:
        gains = group_risk.gains(result, epsilon).values()
        assert all(gain < 2 * error for gain, error in gains)
