"""The library's own transforms, aggregators, samplers and solvers, registered for its tests.

Importing this package registers them, as any other package registers its own.
"""

import importlib

from dpjax.testing import entries

for _kind in (
    "learners",
    "noise",
    "nonconvex",
    "online",
    "queries",
    "solvers",
    "erm",
    "games",
    "transforms",
    "aggregators",
    "samplers",
):
    importlib.import_module(f"tests.entries.{_kind}")

# Conformance takes every entry. Tests of what lies around solvers, such as devices, checkpoints and
# generators, leave out those whose program is that of another but for a noise or an average.
PROGRAMS = tuple(entry.name for entry in entries("solver") if entry.relative_of is None)


def one_of_each() -> list[str]:
    """The first entry of each class of solvers."""
    names = [entry.name for entry in entries("solver")]
    return list({name.split("(")[0]: name for name in reversed(names)}.values())[::-1]
