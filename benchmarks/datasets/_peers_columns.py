"""Columns and split of DP-FERMI's published code, for numbers that stand beside its own.

Numbers are standardised by the mean and deviation of the training rows, which is **not private**;
every value of another column that occurs has a column of its own; sex is the group and no
feature. The first 75 % of a permutation by NumPy's legacy generator, seed 100, are for training, as
`DataFrame.sample` of pandas takes them. Adult: records without a missing value, the file's training
rows first. Credit: codes of education and marriage without a meaning count as "other". That gives
the published numbers of columns, 102, 85 and 19; which codes their Credit file merges is not
published. Parkinsons holds `motor_UPDRS`, a part of the score that is predicted, as theirs does.

Source: Lowy, Gupta and Razaviyayn, "Stochastic differentially private and fair learning", 2023.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import dpjax
from benchmarks.datasets import _credit, _parkinsons
from benchmarks.datasets._read import read_columns
from dpjax.datasets import Dataset
from dpjax.datasets._adult_schema import NUMERIC
from dpjax.datasets._dataset import Table

_NOTE = "Columns of the published code of DP-FERMI, scaled by statistics of the training rows."


def adult_102() -> tuple[Dataset, Dataset]:
    """Train and test records of Adult, 33,916 and 11,306."""
    table = dpjax.datasets.adult_table()
    whole = np.all([table[column] != "?" for column in table], axis=0)
    table = {column: values[whole] for column, values in table.items()}
    plain = [column for column in table if column not in (*NUMERIC, "sex", ">50K")]
    like = dpjax.datasets.adult().select(whole)
    return _train_and_test(like, table, NUMERIC, plain)


def credit_85(path: str | Path | None) -> tuple[Dataset, Dataset]:
    """Train and test records of Credit default, 22,500 and 7,500; `path` as of `credit_default`."""
    like = _credit.credit_default(path)
    table = _credit._read_table(_credit.locate(path, _credit._URL, "credit_default.zip", None))
    table["EDUCATION"] = np.where(np.isin(table["EDUCATION"], (1, 2, 3)), table["EDUCATION"], 4)
    table["MARRIAGE"] = np.where(np.isin(table["MARRIAGE"], (1, 2)), table["MARRIAGE"], 3)
    numeric = ("LIMIT_BAL", "AGE", *_credit._BILL, *_credit._PAID)
    return _train_and_test(like, table, numeric, ("EDUCATION", "MARRIAGE", *_credit._PAY))


def parkinsons_19(path: str | Path | None) -> tuple[Dataset, Dataset]:
    """Train and test records of Parkinsons, 4,406 and 1,469; `path` as of `parkinsons`."""
    like = _parkinsons.parkinsons(path)
    numeric = ("age", "test_time", "motor_UPDRS", *_parkinsons._LOG_RANGES)
    numeric = (*numeric, *(c for c in _parkinsons._LINEAR_RANGES if c != "test_time"))
    file = _parkinsons.locate(path, _parkinsons._URL, "parkinsons_telemonitoring.zip", None)
    return _train_and_test(like, read_columns(file, numeric, (".data", ".csv")), numeric, ())


def _train_and_test(
    like: Dataset, table: Table, numeric: Sequence[str], coded: Sequence[str]
) -> tuple[Dataset, Dataset]:
    """The labels and groups of a data set, with these columns for features."""
    size = len(like)
    train = np.random.RandomState(100).choice(size, size=round(0.75 * size), replace=False)
    test = np.setdiff1d(np.arange(size), train)
    numbers = np.stack([table[column].astype(float) for column in numeric], axis=1)
    mean, deviation = numbers[train].mean(axis=0), numbers[train].std(axis=0, ddof=1)
    columns, names = [(numbers - mean) / deviation], list(numeric)
    for column in coded:
        values = np.unique(table[column])
        columns.append(table[column][:, None] == values[None])
        names += [f"{column}={value}" for value in values]
    x = np.concatenate(columns, axis=1).astype(np.float32)
    bound = float(np.linalg.norm(x, axis=1).max())
    whole = replace(
        like,
        x=x,
        feature_names=tuple(names),
        norm_bound=bound,
        name=f"{like.name}-{x.shape[1]}",
        private_preprocessing=False,
        note=_NOTE,
    )
    return whole.select(train), whole.select(test)
