"""Query release on 2^24 cells: seconds and memory of all 2,024 three-way marginals of 24 flags.

Adult in 24 yes/no attributes by public rules. Runs in a process of its own, whose peak memory is
recorded; imports and data take what is recorded as "before".
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import dpjax
from benchmarks import _runner
from dpjax.api._release import METHODS, choose
from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Marginals

# Yes/no questions about a record; none was chosen by looking at the records' answers.
_WORDS = {
    "sex": ("Male",),
    "race": ("White", "Black"),
    "workclass": ("Private", "Self-emp-not-inc"),
    "marital-status": ("Married-civ-spouse", "Never-married", "Divorced"),
    "relationship": ("Own-child", "Unmarried"),
    "occupation": ("Exec-managerial", "Prof-specialty", "Sales", "Craft-repair"),
    "native-country": ("United-States",),
    ">50K": ("Yes",),
}
_ABOVE = {
    "age": (30, 45, 60),
    "education-num": (9, 12),
    "hours-per-week": (35, 40),
    "capital-gain": (0,),
}
_EPSILON = 1.0


def flags(count: int) -> np.ndarray:
    """The first of the 24 flags of each record, `[48842, count]` int32."""
    table = dpjax.datasets.adult_table()
    columns = [table[name] == word for name, words in _WORDS.items() for word in words]
    columns += [table[name] > bound for name, bounds in _ABOVE.items() for bound in bounds]
    return np.stack(columns[:count], axis=1).astype(np.int32)


def defaults() -> dict[str, Any]:
    """What the rule takes for the marginals of six flags, and its solver."""
    problem = QueryRelease(Marginals.all_kway(Domain(dict.fromkeys("abcdef", 2)), 3))
    budget = dpjax.Budget(_EPSILON, 48_842**-2, "replace_one")
    chosen, options, _ = choose(problem, 48_842, budget)
    options |= {"fit_steps": 100}  # as of the cells of the run
    return {chosen: METHODS[chosen](problem, 48_842, budget, **options)}


def run(*, fast: bool = False, data: Path | None = None) -> dict[str, Any]:
    del data
    count = 12 if fast else 24
    command = [sys.executable, "-m", "benchmarks.query_universe", str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure(count: int) -> dict[str, Any]:
    """What `run` records, in this process."""
    import jax
    import jax.numpy as jnp

    codes = flags(count)
    n = len(codes)
    domain = Domain({f"flag {i}": 2 for i in range(count)})
    workload = Marginals.all_kway(domain, 3)
    before = _peak()
    answers, adjoint = jax.jit(workload.answers), jax.jit(workload.adjoint)
    shares = jnp.full(workload.universe_size, 1 / workload.universe_size)
    weights = jnp.zeros(workload.num_queries)
    passes = _runner.interleaved(
        {
            "answers": lambda: answers(shares),
            "adjoint": lambda: adjoint(weights),
            "softmax": lambda: jax.nn.softmax(shares),
            "read and written": lambda: shares + 1,
        },
        repeats=11,
    )
    truth = np.asarray(workload.answers_of_records(codes))
    budget = dpjax.Budget(_EPSILON, 1 / n**2, "replace_one")
    seconds, errors = [], []
    for seed in range(2):
        start = time.perf_counter()
        released = dpjax.release(workload, codes, budget, key=jax.random.key(seed))
        error = np.abs(np.asarray(released.answers) - truth)
        seconds.append(time.perf_counter() - start)
        errors.append((float(error.max()), float(error.mean())))
    return {
        "attributes": count,
        "cells": workload.universe_size,
        "queries": workload.num_queries,
        "marginals": len(workload.cliques),
        "records": n,
        "epsilon": _EPSILON,
        "method": released.method,
        "max_error": [largest for largest, _ in errors],
        "mean_error": [mean for _, mean in errors],
        "seconds": {"first": seconds[0], "second": seconds[1]},
        "passes": passes,
        "megabytes": {
            "vector": 4 * workload.universe_size / 2**20,
            "before": before,
            "peak": _peak(),
        },
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def summary(result: dict[str, Any]) -> str:
    """One paragraph."""
    memory, seconds, worst = result["megabytes"], result["seconds"], max(result["max_error"])
    return (
        f"{result['queries']:,} queries on {result['cells']:,} cells by {result['method']}: "
        f"largest error {worst:.4f} at epsilon {result['epsilon']:g}, {seconds['first']:.0f} s "
        f"with compilation and {seconds['second']:.0f} s without; peak {memory['peak']:.0f} MiB, "
        f"{memory['before']:.0f} before it began, a vector of cells {memory['vector']:.0f}"
    )


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
