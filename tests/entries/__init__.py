"""The library's own transforms, aggregators, samplers and solvers, registered for its tests.

Importing this package registers them, as any other package registers its own.
"""

import importlib

for _kind in (
    "learners",
    "noise",
    "nonconvex",
    "online",
    "queries",
    "solvers",
    "transforms",
    "aggregators",
    "samplers",
):
    importlib.import_module(f"tests.entries.{_kind}")
