"""Real data for tests and tutorials, with public preprocessing."""

from typing import NoReturn

from dpjax.datasets._adult import adult as adult
from dpjax.datasets._adult import adult_reduced as adult_reduced
from dpjax.datasets._adult import adult_table as adult_table
from dpjax.datasets._dataset import Dataset as Dataset


def __getattr__(name: str) -> NoReturn:
    where = ""
    if name in ("credit_default", "folktables", "heart_indicators", "parkinsons"):
        where = ": since 0.2 it is in benchmarks/datasets of dpjax's source repository"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
