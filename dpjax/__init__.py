"""dpjax: private optimisation in JAX, as pure gradient transformations and jitted solvers."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpjax import api as api
    from dpjax import audit as audit
    from dpjax import core as core
    from dpjax import datasets as datasets
    from dpjax import geometry as geometry
    from dpjax import papers as papers
    from dpjax import privacy as privacy
    from dpjax import problems as problems
    from dpjax import queries as queries
    from dpjax import random as random
    from dpjax import runtime as runtime
    from dpjax import sampling as sampling
    from dpjax import sklearn as sklearn
    from dpjax import solvers as solvers
    from dpjax import testing as testing
    from dpjax import transforms as transforms
    from dpjax.api import *  # noqa: F403
    from dpjax.core import Aggregator as Aggregator
    from dpjax.core import Problem as Problem
    from dpjax.core import Records as Records
    from dpjax.core import Sampler as Sampler
    from dpjax.core import Solution as Solution
    from dpjax.core import Solver as Solver
    from dpjax.core import Transform as Transform
    from dpjax.core import chain as chain
    from dpjax.core import seeded as seeded
    from dpjax.core import shard_records as shard_records
    from dpjax.privacy import Budget as Budget
    from dpjax.privacy import BudgetExceeded as BudgetExceeded
    from dpjax.privacy import Guarantee as Guarantee
    from dpjax.privacy import Ledger as Ledger
    from dpjax.random import secret_key as secret_key
    from dpjax.runtime import solve as solve

__version__ = "0.2.0"

# Imported at first use: accounting brings scipy.stats, which takes longer to import than jax.
_PACKAGES = {found.name for found in pkgutil.iter_modules(__path__) if found.ispkg}  # noqa: F405
_NAMES = {
    "api": "Fitted PersonRecords Plan Release Tuned fit load plan private_edges release tune",
    "core": "Aggregator Problem Records Sampler Solution Solver Transform chain seeded "
    "shard_records",
    "privacy": "Budget BudgetExceeded Guarantee Ledger",
    "random": "secret_key",
    "runtime": "solve",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # to a type checker, a name that is not above is a mistake

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return importlib.import_module(f"dpjax.{name}")
        if name in _HOMES:
            home = importlib.import_module(f"dpjax.{_HOMES[name]}")
            return globals().setdefault(name, getattr(home, name))
        raise AttributeError(f"module 'dpjax' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PACKAGES, *_HOMES})
