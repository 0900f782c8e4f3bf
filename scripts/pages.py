"""Runs the Python blocks of pages of the documentation, each page in a namespace of its own.

    python scripts/pages.py run                     every page that has blocks
    python scripts/pages.py run docs/tuning.md      one
    python scripts/pages.py list                    the pages that have blocks

A block that begins with `# not run` and a reason is passed over: what needs other machines.
"""

import argparse
import contextlib
import gc
import runpy
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
blocks = runpy.run_path(str(ROOT / "scripts" / "readme.py"))["blocks"]


def pages() -> list[Path]:
    """The pages that have Python blocks, in the order of their names."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if blocks(page.read_text(encoding="utf-8"), "python")]


def run(page: Path) -> None:
    """Runs a page; the traceback of an error carries the page's own line numbers.

    In a folder of its own, where what the blocks write does no harm.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(page.read_text(encoding="utf-8"), "python"):
            if block.code.startswith("# not run"):
                continue
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, str(page), "exec"), namespace)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["list", "run"])
    parser.add_argument("page", nargs="*", type=Path)
    arguments = parser.parse_args()
    # traced programs are millions of objects, and no garbage: to look among them takes long
    gc.set_threshold(100_000, 50, 100)
    for page in [path.resolve() for path in arguments.page] or pages():
        name = page.relative_to(ROOT).as_posix()
        if arguments.action == "list":
            print(name)
            continue
        start = time.perf_counter()
        run(page)
        print(f"{name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
