"""What a docstring of the house must have, given what the code takes and raises."""

import ast
import builtins
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

ARRAYS = re.compile(r"^(?!Callable).*\b(jax\.Array|ArrayLike|ndarray)\b")  # a tree has many
SHAPE = re.compile(r"\[[^]]*\]|\b(scalar|tree|leaves|key|number|(any|same) shape)s?\b", re.I)
HEADER = re.compile(r"^(Args|Attributes|Returns|Raises|Example)(?: \(.+\))?:$")
ITEM = re.compile(r"^\*{0,2}(\w+):\s")
CHECK = re.compile(r"_?check(_|ed_)")


def sections(doc: str) -> dict[str, str]:
    """The indented text under each heading, and that of the paragraph `Guarantee:`."""
    found: dict[str, str] = {}
    name = None
    for line in inspect.cleandoc(doc).splitlines():
        header = HEADER.match(line)
        if header or (line and line[0] != " "):
            name = header[1] if header else None
        elif name:
            found[name] = found.get(name, "") + line + "\n"
    guarantee = re.search(r"^Guarantee: \S.{20,}", inspect.cleandoc(doc), re.MULTILINE)
    found = {name: textwrap.dedent(text) for name, text in found.items()}
    return found | ({"Guarantee": guarantee[0]} if guarantee else {})


def items(section: str) -> dict[str, str]:
    """The entries of a section by name."""
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        entry = ITEM.match(line)
        name = entry[1] if entry else name
        found[name] = found.get(name, "") + line + "\n"
    return found


def parameters(obj: Any) -> dict[str, str]:
    """What a symbol is made of or takes, with annotations as they are written."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(obj))).body
    if not isinstance(node, ast.ClassDef):
        arguments = [a for a in ast.walk(node.args) if isinstance(a, ast.arg)]
        return {a.arg: _text(a.annotation) for a in arguments if a.arg not in ("self", "cls")}
    if not (dataclasses.is_dataclass(obj) or issubclass(obj, tuple)):
        init = vars(obj).get("__init__")
        return parameters(init) if isinstance(init, FunctionType) else {}
    fields = getattr(obj, "_fields", None) or [f.name for f in dataclasses.fields(obj) if f.init]
    written = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    for base in obj.__bases__:  # whose fields are arguments too, unless a reader is sent there
        told = f"those of `{base.__name__}`" in (obj.__doc__ or "")
        if dataclasses.is_dataclass(base) and not told:
            written += ast.parse("\n".join(f"{n}: {t}" for n, t in parameters(base).items())).body
    named = {ast.unparse(n.target): _text(n.annotation) for n in written}
    return {name: text for name, text in named.items() if name in fields and name[0] != "_"}


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def misplaced(obj: Any, described: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Fields that are said to be data and shape the program, or the other way about."""
    for field in dataclasses.fields(obj) if dataclasses.is_dataclass(obj) else ():
        wrong = "data" if field.metadata.get("static") else "static"
        if f"({wrong})" in described.get(field.name, ""):
            yield field.name, wrong


def gives(obj: Any) -> bool:
    """Whether a function is said to return anything."""
    nothing = (None, "None", inspect.Signature.empty)
    return not inspect.isclass(obj) and inspect.signature(obj).return_annotation not in nothing


def raised(function: FunctionType) -> set[str]:
    """Names of the exceptions that a function or the checks it calls raise by themselves."""
    return set(_raised(function, set()))


def _raised(function: Any, seen: set[Any]) -> Iterator[str]:
    if function in seen or not isinstance(function, FunctionType):
        return
    seen.add(function)
    scope = function.__globals__
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func)
            if inspect.isclass(getattr(builtins, name, scope.get(name))):
                yield name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = scope.get(node.func.id)
            if CHECK.match(node.func.id) and _of_one_package(called, function):
                yield from _raised(called, seen)


def _of_one_package(*functions: Any) -> bool:
    return len({str(getattr(f, "__module__", None)).split(".")[0] for f in functions}) == 1


def makers(obj: Any) -> list[FunctionType]:
    """The functions that run when a symbol is called."""
    if not inspect.isclass(obj):
        return [inspect.unwrap(obj)]
    names = ("__new__", "__init__", "__post_init__")
    found = [vars(obj).get(name) for name in names]
    written = [inspect.unwrap(f) for f in found if isinstance(f, FunctionType)]
    return [f for f in written if f.__module__ == obj.__module__ and "<string>" not in _file(f)]


def _file(function: FunctionType) -> str:
    return function.__code__.co_filename


def methods(obj: Any) -> Iterator[tuple[str, Any, bool]]:
    """The public methods and properties that a class defines, and whether it is a constructor."""
    for name, value in vars(obj).items() if inspect.isclass(obj) else ():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        written = isinstance(function, FunctionType) and function.__module__ == obj.__module__
        if written and name[0] != "_":
            yield name, function, isinstance(value, classmethod)


def complaints_of_method(function: FunctionType, about: str, known: set[str]) -> list[str]:
    """What is missing in a method's docstring and in `about`, that of its class and protocol.

    A line may do for a method, if it names all that it takes but what is `known` of all of them.
    """
    own = function.__doc__ or ""
    if not own.strip():
        return ["no docstring"]
    missing = [
        f"{name} is not described"
        for name in parameters(function)
        if name not in known and not re.search(rf"\b{name}\b", own + about)
    ]
    errors = sorted(raised(function))
    return missing + [f"{error} is not described" for error in errors if error not in own + about]


def complaints(obj: Any, doc: str | None, guarantee: bool) -> list[str]:
    """What is missing in the docstring `doc` of a public symbol."""
    if not (doc or "").strip():
        return ["no docstring"]
    found = sections(str(doc))
    described = items(found.get("Args", "")) | items(found.get("Attributes", ""))
    missing = []
    for name, annotation in parameters(obj).items():
        if name not in described:
            missing.append(f"{name} is not in Args or Attributes")
        elif ARRAYS.search(annotation) and not SHAPE.search(described[name]):
            missing.append(f"{name} has no shape")
    errors = {error for maker in makers(obj) for error in raised(maker)}
    known = items(found.get("Raises", ""))
    missing += [f"{error} is not in Raises" for error in sorted(errors - set(known))]
    missing += [f"{name} is said to be {kind}" for name, kind in misplaced(obj, described)]
    if gives(obj) and "Returns" not in found:
        missing.append("no Returns")
    if guarantee and "Guarantee" not in found:
        missing.append("no Guarantee")
    return missing
