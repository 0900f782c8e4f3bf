"""No message shows a value of the data, which ends in logs; it says where, and how many."""

import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks.datasets._read import check_codes, parse_columns
from dpjax.problems import QueryRelease, RateConstrained, demographic_parity
from dpjax.queries import Concat, Dense, Domain, Marginals, Prefix
from dpjax.sampling import IndependentPartition, PoissonSampler

SENTINEL = 7390
TEXT = "zebra7390"
DOMAIN = Domain({"sex": ["F", "M"], "age": 4, "mixed": ["a", 1]})
TABLE = {"sex": ["F", "M"], "age": [1, 2], "mixed": ["a", 1]}
CODES = np.array([[0, 1, 0], [1, 2, 1]])
MARGINALS = Marginals.all_kway(DOMAIN, 1)
PARITY = RateConstrained.linear(2, 2, demographic_parity(2, 2, 0.1))
ROWS = {"x": np.ones((2, 2)), "y": np.array([0, 1]), "group": np.array([0, 1])}


def code(column):
    codes = CODES.copy()
    codes[1, column] = SENTINEL
    return codes


def solved(problem, data):
    budget = dpjax.Budget(1.0, 1e-6)
    if isinstance(problem, QueryRelease):
        solver = dpjax.solvers.HistogramRelease.for_budget(problem, 2, budget)
    else:
        solver = dpjax.solvers.RateConstrainedSGDA.for_budget(problem, 2, budget, steps=2)
    return dpjax.solve(solver, problem, data, key=jax.random.key(0))


def fitted(x=ROWS["x"], y=ROWS["y"], group=ROWS["group"], **fields):
    sklearn = pytest.importorskip("dpjax.sklearn")
    model = sklearn.FairLogisticRegression(**{"classes": [0, 1], "groups": [0, 1]} | fields)
    return model.fit(x, y, sensitive_features=group)


def learned(table):
    sklearn = pytest.importorskip("dpjax.sklearn")
    return sklearn.PrivateSynthesizer(DOMAIN).fit(table)


BUDGET, KEY = dpjax.Budget(1.0, 1e-6), jax.random.key(0)
SITES = {
    "a label": lambda: DOMAIN.encode(TABLE | {"sex": ["F", TEXT]}),
    "a number for a label": lambda: DOMAIN.encode(TABLE | {"mixed": ["a", SENTINEL]}),
    "a code": lambda: DOMAIN.encode(TABLE | {"age": [1, SENTINEL]}),
    "a negative code": lambda: DOMAIN.encode(TABLE | {"age": [1, -SENTINEL]}),
    "a fraction": lambda: DOMAIN.encode(TABLE | {"age": [1, SENTINEL + 0.5]}),
    "an object": lambda: DOMAIN.encode(TABLE | {"age": np.array([1, TEXT], object)}),
    "text for a code": lambda: DOMAIN.encode(TABLE | {"age": ["1", TEXT]}),
    "an array": lambda: DOMAIN.encode(code(1)),
    "ragged rows": lambda: DOMAIN.encode([[SENTINEL], [1, 2]]),
    "codes to cells": lambda: DOMAIN.cells(code(0)),
    "codes to labels": lambda: DOMAIN.decode(code(2)),
    "cells to codes": lambda: DOMAIN.codes(np.array([1, SENTINEL])),
    "a histogram": lambda: MARGINALS.histogram(code(1)),
    "answers": lambda: MARGINALS.answers_of_records(code(1)),
    "answers of one": lambda: MARGINALS.answer_of_record(code(1)[1]),
    "cells": lambda: Dense(np.eye(3)).histogram(np.array([1, SENTINEL])),
    "one cell": lambda: Dense(np.eye(3)).answer_of_record(SENTINEL),
    "cells of a prefix": lambda: Prefix(5).answers_of_records(jnp.array([1, SENTINEL])),
    "several": lambda: Concat([MARGINALS, Dense(np.eye(16))]).histogram(code(1)),
    "release": lambda: dpjax.release(
        MARGINALS, code(1), dpjax.Budget(1.0, 1e-6), key=jax.random.key(0)
    ),
    "a run": lambda: solved(QueryRelease(MARGINALS), code(1)),
    "a class": lambda: solved(PARITY, ROWS | {"y": np.array([0, SENTINEL])}),
    "a group": lambda: solved(PARITY, ROWS | {"group": jnp.array([0, SENTINEL])}),
    "a class of an estimator": lambda: fitted(y=np.array([0, SENTINEL])),
    "a class in text": lambda: fitted(y=np.array(["0", TEXT]), classes=["0", "1"]),
    "a group of an estimator": lambda: fitted(group=np.array([0, SENTINEL])),
    "classes that are read": lambda: fitted(y=np.array([SENTINEL] * 2), classes=None),
    "groups that are read": lambda: fitted(group=np.array([TEXT] * 2), groups=None),
    "text among features": lambda: fitted(x=[["1", TEXT], ["1", "2"]]),
    "a table": lambda: learned(TABLE | {"sex": ["F", TEXT]}),
    "records for their number": lambda: dpjax.plan(PARITY, {"x": [SENTINEL]}, BUDGET),
    "a pair for their number": lambda: dpjax.plan(PARITY, ([[SENTINEL] * 2], [1]), BUDGET),
    "text to fit": lambda: dpjax.fit(PARITY, ROWS | {"y": ["0", TEXT]}, BUDGET, key=KEY),
    "a number of records": lambda: PoissonSampler(0.5, 2, 9).plan(jax.random.key(0), SENTINEL),
    "one of shares": lambda: IndependentPartition(2, 9).plan(jax.random.key(0), SENTINEL),
    "a code of a file": lambda: check_codes("age", np.array([1, SENTINEL]), (1, 2)),
    "a field of a file": lambda: parse_columns("file", ["a"], iter([["1"], [TEXT]]), ["a"]),
}


@pytest.mark.filterwarnings("ignore::dpjax.sklearn.PrivacyWarning")
@pytest.mark.parametrize("site", SITES)
def test_no_message_shows_a_value(site):
    with pytest.raises((ValueError, TypeError)) as error:
        SITES[site]()
    message = "".join(traceback.format_exception_only(error.value))
    assert str(SENTINEL) not in message
    # what is shown of causes and contexts
    shown, seen = error.value, []
    while shown is not None:
        seen.append(str(shown))
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    assert str(SENTINEL) not in "".join(seen)


def test_columns_and_numbers_of_rows_are_shown():
    with pytest.raises(ValueError, match=r"column 'age' must hold .* 1 of 2 rows are outside"):
        DOMAIN.encode(TABLE | {"age": [1, SENTINEL]})
    with pytest.raises(ValueError, match=r"codes of 'age' must lie in \[0, 4\): 1 of 2"):
        MARGINALS.histogram(code(1))
