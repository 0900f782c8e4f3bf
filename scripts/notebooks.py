"""Keeps each notebook in step with its text form, and runs them.

    python scripts/notebooks.py sync     writes notebooks/*.ipynb from notebooks/*.py
    python scripts/notebooks.py check    fails where one differs from its text, or holds outputs
    python scripts/notebooks.py run      runs all cells; an error or a warning in any is an error

Each takes names, `00_quickstart`, for some of them; default: all. `run --save notebooks/executed`
keeps what ran with its outputs, in a folder that git ignores and from which `mkdocs build` shows
them.

Edit the `.py` files; the `.ipynb` files are for readers, and carry no outputs. Set `DPJAX_FAST=1`
for a shortened run. The badge leads to Colab's start page, where a notebook can be uploaded; where
pyproject.toml has a `Repository` among its URLs, to that notebook at the tag of this version.
"""

import argparse
import importlib.metadata
import os
import time
import tomllib
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
COLAB = "https://colab.research.google.com/"
CELL_SECONDS = 600


def badge_link(source: Path) -> str:
    """Where the badge of a notebook leads."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository", "")
    if not repository.startswith("https://github.com/"):
        return COLAB
    path = repository.removeprefix("https://github.com/").rstrip("/")
    version = importlib.metadata.version(project["name"])
    return f"{COLAB}github/{path}/blob/v{version}/notebooks/{source.stem}.ipynb"


def render(source: Path) -> str:
    """The `.ipynb` of a text notebook: no outputs, and the same bytes every time."""
    text = source.read_text(encoding="utf-8")
    if text.count(f"]({COLAB})") != 1:
        raise SystemExit(f"{source.name} must have one badge that leads to {COLAB}")
    text = text.replace(f"]({COLAB})", f"]({badge_link(source)})")
    notebook = jupytext.reads(text, fmt="py:percent")
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


def run(source: Path, folder: Path | None = None) -> None:
    """Runs the cells in a fresh kernel; where a folder is given, keeps them with their outputs."""
    start = time.perf_counter()
    notebook = nbformat.reads(render(source), as_version=4)
    os.environ.setdefault("PYTHONWARNINGS", "error::UserWarning,error::RuntimeWarning")
    NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    if folder is not None:
        notebook.metadata["shortened"] = os.environ.get("DPJAX_FAST", "0") != "0"
        folder.mkdir(parents=True, exist_ok=True)
        text = nbformat.writes(notebook) + "\n"
        (folder / f"{source.stem}.ipynb").write_text(text, encoding="utf-8")
    print(f"{source.name}: {time.perf_counter() - start:.0f} s")


def main() -> None:
    """The command line."""
    actions = {"sync": sync, "check": check}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=[*actions, "run"])
    parser.add_argument("name", nargs="*", help="such as 00_quickstart; default: all")
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="keep what `run` ran, with outputs"
    )
    arguments = parser.parse_intermixed_args()
    sources = {source.stem: source for source in sorted(FOLDER.glob("*.py"))}
    if unknown := sorted({*arguments.name} - {*sources}):
        parser.error(f"no notebook is called {', '.join(unknown)}")
    if arguments.save and arguments.action != "run":
        parser.error("--save goes with run")
    for name in arguments.name or sources:
        if arguments.action == "run":
            run(sources[name], arguments.save)
        else:
            actions[arguments.action](sources[name])


if __name__ == "__main__":
    main()
