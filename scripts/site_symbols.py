"""The public names of the packages, read from their source; for the site and the tests of it."""

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("functions", "classes", "types", "states")


class Symbol(NamedTuple):
    """A public name: where it is documented, of which kind, and its first line."""

    name: str
    home: str
    kind: str
    summary: str


def symbols(package: str) -> list[Symbol]:
    """What a package exports as `from module import name as name`, in order."""
    text = _path(package).read_text(encoding="utf-8")
    # those of `dpjax` itself are for type checkers, inside a condition
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    found = []
    for node in imports:
        for alias in node.names:
            name, module = alias.name, str(node.module)
            if alias.asname != name or name.startswith("_"):
                continue
            if module in ("dpjax", package):  # a package, or a module of its own
                continue
            if module.split(".")[-1].startswith("_"):
                found.append(Symbol(name, f"{package}.{name}", *_definition(module, name)))
            else:  # exported once more
                (origin,) = [symbol for symbol in symbols(module) if symbol.name == name]
                found.append(origin)
    return found


def _path(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _definition(module: str, name: str) -> tuple[str, str]:
    """Kind and first line of what a module defines."""
    body = ast.parse(_path(module).read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname for alias in node.names]:
            return _definition(str(node.module), name)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return "functions", _first_line(ast.get_docstring(node))
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _kind(node), _first_line(ast.get_docstring(node))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if [t.id for t in targets if isinstance(t, ast.Name)] == [name]:
                text = getattr(getattr(after, "value", None), "value", None)
                return "types", _first_line(text if isinstance(text, str) else None)
    raise ValueError(f"{module} must define {name}")


def _kind(node: ast.ClassDef) -> str:
    if "Protocol" in [ast.unparse(base) for base in node.bases]:
        return "types"
    return "states" if node.name.endswith(("State", "Info")) else "classes"


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().split("\n\n")[0].replace("\n", " ")
