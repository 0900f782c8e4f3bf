"""Prints the lowest versions that pyproject.toml allows of what it requires, as exact requirements.

    python scripts/lowest.py                              of the package
    python scripts/lowest.py test --without jax-privacy   and of an extra, but for one of them

Needs the standard library alone. A requirement without a lower bound is an error.
"""

import argparse
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(project: dict[str, Any], extra: str | None = None) -> Iterator[str]:
    """Those of the package, or of an extra with the extras it names in turn."""
    own = re.compile(rf"{project['name']}\[(.+)\]")
    listed = project["optional-dependencies"][extra] if extra else project["dependencies"]
    for requirement in listed:
        if named := own.fullmatch(requirement):
            for other in named[1].split(","):
                yield from requirements(project, other.strip())
        else:
            yield requirement


def lowest(requirement: str) -> tuple[str, str]:
    """The name, with extras, and the version of its lower bound.

    Raises:
        ValueError: If it has none.
    """
    found = re.match(r"([\w.-]+(?:\[.*\])?)[^;]*?>=\s*([\w.]+)", requirement)
    if not found:
        raise ValueError(f"every requirement must have a lower bound, got {requirement!r}")
    return found[1], found[2]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extra", nargs="*", help="extras to include")
    parser.add_argument("--without", nargs="*", default=[], help="names to leave out")
    arguments = parser.parse_args()
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    parts = (None, *arguments.extra)
    pinned = dict(lowest(line) for part in parts for line in requirements(project, part))
    for name in arguments.without:
        del pinned[name]
    print("\n".join(f"{name}=={version}" for name, version in pinned.items()))


if __name__ == "__main__":
    main()
