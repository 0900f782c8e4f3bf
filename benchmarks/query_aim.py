"""AIM, the adaptive peer of query release, on all three-way marginals of Adult: error and seconds.

One run a process. Delta 1/n^2, replace-one, one configuration: the paper's, with up to 1000
iterations of `mbi` a round; two seeds, since a run takes minutes.
"""

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dpjax
from benchmarks import _query_peers, _query_peers_aim

PEERS = ("mbi",)
EPSILONS = (0.25, 1.0)
SEEDS = 2


def run(*, fast: bool = False, data: Path | None = None) -> dict[str, Any]:
    """A row for each epsilon and seed; `fast` takes one, on four attributes, of 50 iterations."""
    del data
    if importlib.util.find_spec("mbi") is None:
        print("mbi is not installed: nothing to run")
        return {"delta": "1/n^2", "rows": []}
    cases = [(1.0, 0)] if fast else [(e, seed) for e in EPSILONS for seed in range(SEEDS)]
    rows = []
    for epsilon, seed in cases:
        sizes = [4, 50] if fast else []
        command = [sys.executable, "-m", "benchmarks.query_aim", *map(str, (epsilon, seed, *sizes))]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print(rows[-1], flush=True)
    return {"delta": "1/n^2", "rows": rows}


def measure(
    epsilon: float, seed: int, attributes: int = 7, iterations: int = 1000
) -> dict[str, Any]:
    """One run, in this process, on the last of the attributes."""
    codes, domain = dpjax.datasets.adult_reduced()
    codes = codes[:, -attributes:]
    sizes = dict(list(zip(domain.attributes, domain.shape, strict=True))[-attributes:])
    cliques = list(itertools.combinations(sizes, 3))
    truth = _query_peers.exact_answers(codes, sizes, cliques)
    peer = _query_peers_aim.aim_peer(iterations)
    released = peer(codes, sizes, cliques, epsilon, 1 / len(codes) ** 2, seed)
    error = np.abs(released["answers"] - truth)
    return {
        "epsilon": epsilon,
        "seed": seed,
        "max": float(error.max()),
        "mean": float(error.mean()),
        "seconds": released["seconds"],
        "configuration": released["config"],
    }


def points(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over seeds, and the range of the largest error, at each epsilon."""
    found = []
    for epsilon in sorted({row["epsilon"] for row in result["rows"]}):
        mine = [row for row in result["rows"] if row["epsilon"] == epsilon]
        largest = [row["max"] for row in mine]
        found.append(
            {
                "epsilon": epsilon,
                "max": float(np.mean(largest)),
                "max_range": [min(largest), max(largest)],
                "mean": float(np.mean([row["mean"] for row in mine])),
                "seconds": float(np.median([row["seconds"] for row in mine])),
            }
        )
    return found


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row an epsilon."""
    lines = ["| epsilon | largest error | mean error | seconds |", "|---|---|---|---|"]
    for p in points(result):
        low, high = p["max_range"]
        lines.append(
            f"| {p['epsilon']:g} | {p['max']:.4f} ({low:.4f} to {high:.4f}) | {p['mean']:.5f} | "
            f"{p['seconds']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]), *map(int, sys.argv[2:]))))
