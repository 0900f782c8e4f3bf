"""Reads the README: its Python blocks, and the two commands that set the project up.

    python scripts/readme.py job     prints the command that installs and runs the main job
    python scripts/readme.py test    prints the command that installs and passes the tests
    python scripts/readme.py run     runs every Python block in turn, in one namespace

Needs the standard library alone, so that CI can ask it before anything is installed.
"""

import argparse
import contextlib
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

README = Path(__file__).resolve().parent.parent / "README.md"
COMMANDS = {"job": "-m dpjax", "test": "pytest"}


class Block(NamedTuple):
    """A fenced block: the line of its first line of code, and the code."""

    line: int
    code: str


def blocks(text: str, language: str) -> list[Block]:
    """The fenced blocks of one language, in order."""
    fences = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in fences]


def setup_command(text: str, purpose: str) -> str:
    """The one shell line that starts from a bare clone and serves this purpose.

    Raises:
        ValueError: If there is none, or more than one.
    """
    lines = [line for block in blocks(text, "bash") for line in block.code.splitlines()]
    setups = [line for line in lines if line.startswith("python3 -m venv ")]
    found = [line for line in setups if COMMANDS[purpose] in line.split("&&")[-1]]
    if len(found) != 1:
        raise ValueError(f"the README must have one set-up command for {purpose}, got {found}")
    return found[0]


def run_python(text: str) -> None:
    """Runs the Python blocks; an error's traceback carries the README's own line numbers.

    In a folder of its own, where what they write does no harm.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(text, "python"):
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, str(README), "exec"), namespace)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*COMMANDS, "run"])
    what = parser.parse_args().what
    text = README.read_text(encoding="utf-8")
    if what == "run":
        run_python(text)
    else:
        print(setup_command(text, what))


if __name__ == "__main__":
    main()
