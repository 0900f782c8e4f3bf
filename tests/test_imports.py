"""`import dpjax` is cheap: what is heavy is imported where it is first used."""

import ast
import importlib
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
    packages = {node.names[0].name for node in seen if node.module == "dpjax"}
    names = {
        node.names[0].name: node.module.removeprefix("dpjax.")
        for node in seen
        if node.module.startswith("dpjax.")
    }
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
