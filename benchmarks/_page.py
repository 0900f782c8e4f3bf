"""The page of results, `benchmarks/README.md`, made from the committed runs."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    _results_convex,
    _results_nonsmooth,
    _results_queries,
    _runner,
    adult_splits,
    fair_frontiers,
    fair_further,
    noise_strategies,
    nonsmooth,
    query_release,
    vertex_reference,
)
from benchmarks._text import table

PAGE = Path(__file__).parent / "README.md"
HEAD = """# Benchmarks

Made by `python -m benchmarks readme` from the JSON under `results/`: every number here is that of a
committed run. From the root of a checkout:

```sh
pip install -e '.[bench,peers]'      # without peers, other libraries' rows are left out
python -m benchmarks list            # the studies
python -m benchmarks run STUDY       # one of them, or all: JSON and plot under benchmarks/results/
python -m benchmarks run STUDY --fast          # the same code at small sizes, in a minute
python -m benchmarks run STUDY --data DIR      # where data files that are not embedded lie
python -m benchmarks defaults STUDY            # stores what its solvers resolve to; see --help
python -m benchmarks plot                      # plots again, from the JSON
python -m benchmarks compare A.json B.json     # what is slower or worse in B; see its --help
python -m benchmarks readme                    # this page, the docs' results, the README's table
```

A result records the processor, cores, memory and load of its machine, the versions of all libraries
compared, the commit, and JAX's settings of precision and random numbers. Times are medians of calls
that are made in turn, A B C A B C, after warm-up, with their quartiles; compiling is timed by
itself. "busy" marks a run that began with more than half of the cores at work. Blank: not recorded.
"""


def page(folder: Path = _runner.RESULTS) -> str:
    """The whole page.

    Args:
      folder: where the results are; links are as if they were in `results`.
    """
    from benchmarks.__main__ import studies

    found = {
        name: _runner.load(name, folder) if (folder / f"{name}.json").exists() else None
        for name in studies()
    }
    plots = {name for name in found if (folder / f"{name}.png").exists()}
    rows = [_row(name, result, name in plots) for name, result in found.items()]
    head = ["study", "question", "command", "run", "with", "on", "files"]
    sections = [
        _section(name, result, name in plots, folder)
        for name, result in found.items()
        if result is not None
    ]
    return "\n\n".join([HEAD.strip(), table(head, rows), *sections]) + "\n"


def write() -> Path:
    """Writes the page."""
    PAGE.write_text(page())
    return PAGE


def tables(name: str, result: dict[str, Any]) -> list[str]:
    """What a study has to show, in Markdown: its own `readme`, or else its `summary`."""
    if name in _TABLES:
        return _TABLES[name](result)
    module = importlib.import_module(f"benchmarks.{name}")
    return [getattr(module, "readme", module.summary)(result)]


def _nonsmooth(result: dict[str, Any]) -> list[str]:
    real = [r for r in result["tasks"] if r["task"] in nonsmooth.REAL]
    return [
        "Mean loss over the training records:",
        _results_nonsmooth.tasks(result["tasks"], "loss"),
        "Goldstein norm:",
        _results_nonsmooth.tasks(result["tasks"], "goldstein"),
        "Accuracy on test records, ramp loss:",
        _results_nonsmooth.tasks(real, "accuracy"),
        "Accuracy on test records, losses that are no more than values:",
        _results_nonsmooth.black_box(result["black_box"]),
        "Exponents of the Goldstein norm:",
        _results_nonsmooth.exponents(result),
        "Cost of estimates from values:",
        _results_nonsmooth.cost(result["cost"]),
    ]


def _online_to_batch(result: dict[str, Any]) -> list[str]:
    return [
        "Excess risk, logistic regression:",
        _results_convex.synthetic(result["points"], "logistic"),
        "Excess risk, least squares:",
        _results_convex.synthetic(result["points"], "least squares"),
        "Real data:",
        _results_convex.real(result["real"]),
        *_results_convex.lessons(result),
    ]


def _query_release(result: dict[str, Any]) -> list[str]:
    return [
        *(_results_queries.errors(result["rows"], data) for data in ("adult", "credit")),
        query_release.fits(result),
        _results_queries.halves(result["halves"]),
    ]


_TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "adult_splits": lambda result: [adult_splits.summary(result)],
    "fair_frontiers": lambda result: [fair_frontiers.readme(result["frontiers"])],
    "fair_further": fair_further.readme,
    "noise_strategies": lambda result: [noise_strategies.readme(result)],
    "nonsmooth": _nonsmooth,
    "online_to_batch": _online_to_batch,
    "query_release": _query_release,
    "vertex_reference": lambda result: [
        part
        for task in ("game", "regression", "logistic")
        for part in (f"{task.capitalize()}:", vertex_reference.readme(result, task))
    ],
}


def _row(name: str, result: dict[str, Any] | None, plot: bool) -> list[str]:
    command = f"`python -m benchmarks run {name}`"
    if result is None:
        return [name, _question(name), command, "no committed results", "", "", ""]
    environment = result["environment"]
    versions = environment["versions"]
    ran = [environment.get("date", ""), environment.get("commit") or "", _busy(environment)]
    files = [f"[JSON](results/{name}.json)", *([f"[plot](results/{name}.png)"] if plot else [])]
    return [
        f"[{name}](#{name})",
        _question(name),
        command,
        ", ".join(filter(None, ran)),
        ", ".join(f"{p} {versions[p]}" for p in ("dpjax", "jax", *_peers(name)) if versions.get(p)),
        _machine(environment),
        ", ".join(files),
    ]


def _machine(environment: dict[str, Any]) -> str:
    devices = set(environment["devices"]) if environment["backend"] != "cpu" else set()
    cores = f"{environment.get('usable_cores') or environment['cores']} cores"
    return ", ".join([*sorted(devices), environment["processor"], cores])


def _busy(environment: dict[str, Any]) -> str:
    load, cores = environment.get("load_average"), environment.get("usable_cores")
    return "busy" if load and cores and load[0] > cores / 2 else ""


def _peers(name: str) -> tuple[str, ...]:
    """The other libraries that a study runs, by its module's `PEERS`."""
    return getattr(importlib.import_module(f"benchmarks.{name}"), "PEERS", ())


def _question(name: str) -> str:
    return _doc(name).splitlines()[0]


def _doc(name: str) -> str:
    return inspect.cleandoc(importlib.import_module(f"benchmarks.{name}").__doc__ or "")


def _elsewhere(name: str, folder: Path) -> list[str]:
    """The same tables of runs on accelerators, where they are."""
    parts = []
    for device in ("gpu", "tpu"):
        if not (folder / f"{name}.{device}.json").exists():
            continue
        result = _runner.load(f"{name}.{device}", folder)
        environment = result["environment"]
        ran = f"jax {environment['versions']['jax']}, {environment['date']}"
        ran += f", {environment['commit']}; [JSON](results/{name}.{device}.json)"
        note = f"; {result['note']}" if "note" in result else ""
        parts += [f"On {_machine(environment)} ({ran}{note}):", *tables(name, result)]
    return parts


def _section(name: str, result: dict[str, Any], plot: bool, folder: Path) -> str:
    parts = [f"## {name}", _doc(name), *tables(name, result), *_elsewhere(name, folder)]
    return "\n\n".join([*parts, *([f"![{name}](results/{name}.png)"] if plot else [])])
