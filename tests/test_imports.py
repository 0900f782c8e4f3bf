"""`import dpjax` is cheap: what is heavy is imported where it is first used."""

import ast
import importlib
import inspect
import pathlib
import subprocess
import sys

import pytest

import dpjax

HEAVY = ("scipy", "dp_accounting", "matplotlib", "orbax", "tqdm", "sklearn", "dpjax.audit")
ROOT = pathlib.Path(dpjax.__file__).parent


def imported_after(statement):
    shown = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    return set(done.stdout.split())


def test_importing_the_library_imports_nothing_heavy():
    assert not imported_after("import dpjax") & set(HEAVY)


@pytest.mark.slow  # it imports half of scipy in a new process
def test_names_are_imported_at_first_use():
    found = imported_after("import dpjax; dpjax.audit.lower_bound")
    assert {"dpjax.audit", "dp_accounting.pld", "scipy.stats"} <= found
    found = imported_after("import dpjax; dpjax.solve")
    assert not found & {"matplotlib", "orbax", "sklearn", "dpjax.audit", "dpjax.datasets"}


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    seen = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    (every,) = [node for node in seen if node.names[0].name == "*"]
    seen.remove(every)
    doors = [name for name in vars(importlib.import_module(every.module)) if name[0] != "_"]
    packages = {node.names[0].name for node in seen if node.module == "dpjax"}
    names = {
        node.names[0].name: node.module.removeprefix("dpjax.")
        for node in seen
        if node.module.startswith("dpjax.")
    }
    names |= dict.fromkeys(doors, every.module.removeprefix("dpjax."))
    assert packages == dpjax._PACKAGES
    assert names == dpjax._HOMES


def test_each_name_can_be_had():
    for name in dpjax._PACKAGES - {"sklearn"}:
        assert getattr(dpjax, name) is importlib.import_module(f"dpjax.{name}")
    for name, home in dpjax._HOMES.items():
        assert getattr(dpjax, name) is getattr(importlib.import_module(f"dpjax.{home}"), name)
    assert {*dpjax._PACKAGES, *dpjax._HOMES} <= set(dir(dpjax))


def test_other_names_are_not_found():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpjax.nothing


def old_names():
    """Names that have moved, each with the path that it has now."""
    for package in ("core", "queries", "solvers", "transforms"):
        find = importlib.import_module(f"dpjax.{package}").__getattr__
        moved = inspect.getclosurevars(find).nonlocals["names"]
        yield from ((f"dpjax.{package}", old, now) for old, now in moved.items())


@pytest.mark.parametrize(("package", "old", "now"), list(old_names()))
def test_old_names_are_had_with_a_warning(package, old, now):
    home, _, name = now.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{package}.{old} is {now} since 0.2"):
        found = getattr(importlib.import_module(package), old)
    assert found is getattr(importlib.import_module(home), name)


def test_old_names_are_those_of_the_changelog():
    old = {name for _, name, _ in old_names()}
    assert {"solve", "Release", "stationarity_plan", "CellRecords", "adagrad_norm"} <= old
    assert {"strongly_convex_descent", "MirroredState"} <= old


def test_transformations_that_no_default_uses_are_had_where_they_were(recwarn):
    here = {
        dpjax.transforms: "multilevel polar_estimate maurey_sample mirror_step anytime_average",
        dpjax.geometry: "entropic p_norm",
        dpjax.sampling: "TaperedPartition",
    }
    for package, names in here.items():
        for name in names.split():
            assert getattr(package, name).__name__ == name
    assert not recwarn
