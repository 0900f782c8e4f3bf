"""Keeps each notebook in step with its text form, and runs them.

    python scripts/notebooks.py sync     writes notebooks/*.ipynb from notebooks/*.py
    python scripts/notebooks.py check    fails where one differs from its text, or holds outputs
    python scripts/notebooks.py run      runs all cells; an error in any of them is an error

Edit the `.py` files; the `.ipynb` files are for readers, and carry no outputs. Set `DPJAX_FAST=1`
for a shortened run.
"""

import argparse
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
CELL_SECONDS = 600


def render(source: Path) -> str:
    """The `.ipynb` of a text notebook: no outputs, and the same bytes every time."""
    notebook = jupytext.read(source)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    for position, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{position}"
        cell["metadata"] = {}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def sync(source: Path) -> None:
    """Writes the `.ipynb` beside its text."""
    source.with_suffix(".ipynb").write_text(render(source), encoding="utf-8")


def check(source: Path) -> None:
    """Raises SystemExit unless the `.ipynb` is what `sync` would write."""
    paired = source.with_suffix(".ipynb")
    if not paired.is_file() or paired.read_text(encoding="utf-8") != render(source):
        raise SystemExit(f"{paired.name} differs from {source.name}: run scripts/notebooks.py sync")


def run(source: Path) -> None:
    """Runs the cells in a fresh kernel."""
    start = time.perf_counter()
    notebook = nbformat.reads(render(source), as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    print(f"{source.name}: {time.perf_counter() - start:.0f} s")


def main() -> None:
    """The command line."""
    actions = {"sync": sync, "check": check, "run": run}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=actions)
    action = actions[parser.parse_args().action]
    for source in sorted(FOLDER.glob("*.py")):
        action(source)


if __name__ == "__main__":
    main()
