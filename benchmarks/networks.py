"""A small network on digits: DP-SGD beside correlated noise over several epochs.

The digits of scikit-learn, 1,347 to train on and 450 to test; two convolutions of 16 and 32
channels, d = 6,090; delta 1e-4, add-or-remove-one, batches of 64 expected records, 20 epochs (421
steps), clip norm 1, plain descent and the default average of iterates. `DP-SGD` is `DPSGD`; `auto`
is `DPFTRL` with bands chosen by `for_budget`; `buffered` is its noise for the same batches in every
epoch, without amplification; jax_privacy's are its plan of one band and of as many as `auto` has,
with batches, clip norm, schedule and average of ours. All have the step size that `for_budget`
sets, all but `buffered` also half of it and twice it, at 3 of the seeds. `all defaults` is with no
options at all: steps, batches and clip norm are `for_budget`'s too. Accuracies on the test set are
means over seeds of noise and batches; the start is the same for all. The rule for bands was not
chosen on these runs. The rule for step sizes was looked for because an earlier default lost here to
four times itself; its constants were chosen on other networks. Steps of networks of three layers or
more are smaller where no clip norm is given, because `all defaults` lost here to half itself: that
constant was chosen here among others.
"""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _network_peers
from benchmarks._text import table
from dpjax.solvers import DPFTRL, DPSGD

DELTA = 1e-4
EPSILONS = (1.0, 3.0, 8.0)
FACTORS = (0.5, 1.0, 2.0)  # of the default step size
PEERS = ("jax-privacy",)
OURS = ("DP-SGD", "auto", "buffered")
THEIRS = {"jax_privacy, DP-SGD": "DP-SGD", "jax_privacy, banded": "auto"}  # and what sets its rate
DEFAULTS = {"DPSGD, all defaults": DPSGD, "DPFTRL, all defaults": DPFTRL}


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All ways at all epsilons; `fast` takes a few steps at epsilon 3."""
    del data
    train, test = digits()
    points: list[dict[str, Any]] = []
    size = train["y"].size
    for epsilon in (3.0,) if fast else EPSILONS:
        made = {way: solver(way, size, epsilon, fast=fast) for way in OURS}
        if not fast:
            made |= {way: by_default(way, size, epsilon) for way in DEFAULTS}
        bands = getattr(made["auto"].noise, "bands", 1)
        for way in (*made, *(THEIRS if importlib.util.find_spec("jax_privacy") else ())):
            if way == "DPFTRL, all defaults" and made[way].noise.bands == 1:
                continue  # DP-SGD
            own = made[THEIRS.get(way, way)]
            alone = fast or way == "buffered" or way in DEFAULTS
            for factor in FACTORS[1:2] if alone else FACTORS:
                rate = factor * float(own.learning_rate)
                seeds = range(1 if fast else 5 if factor == 1 else 3)
                if way in THEIRS:
                    count = bands if "banded" in way else 1
                    grades = [
                        graded(theirs(own, count, rate, train, epsilon, seed), test)
                        for seed in seeds
                    ]
                else:
                    swept = dataclasses.replace(own, learning_rate=rate)
                    grades = [accuracy(swept, train, test, seed) for seed in seeds]
                points.append(
                    {
                        "epsilon": epsilon,
                        "way": way,
                        "factor": factor,
                        "learning_rate": rate,
                        "noise_multiplier": float(own.noise_multiplier),
                        "noise": type(own.noise).__name__ if own.noise else "independent",
                        "bands": getattr(own.noise, "bands", None),
                        "steps": own.sampler.steps,
                        "accuracy": float(np.mean(grades)),
                        "accuracies": grades,
                    }
                )
                print(points[-1], flush=True)
    return {"delta": DELTA, "seeds": 1 if fast else 5, "points": points}


def theirs(made: Any, bands: int, rate: float, train: Any, epsilon: float, seed: int) -> Any:
    return _network_peers.params(loss, start(), train, bands, made, rate, (epsilon, DELTA), seed)


def by_default(way: str, records: int, epsilon: float) -> Any:
    budget = dpjax.Budget(epsilon, DELTA, "add_or_remove_one")
    return DEFAULTS[way].for_budget(problem(), records, budget)


def defaults() -> dict[str, Any]:
    """DP-SGD at epsilon 3; to calibrate the other ways takes longer."""
    named = "DPSGD, all defaults"
    return {
        "DP-SGD": solver("DP-SGD", 1347, 3.0, fast=False),
        named: by_default(named, 1347, 3.0),
    }


def digits() -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = jnp.asarray(x[order] / 16, jnp.float32).reshape(-1, 8, 8, 1), jnp.asarray(y[order])
    return {"x": x[:1347], "y": y[:1347]}, {"x": x[1347:], "y": y[1347:]}


def start() -> dict[str, jax.Array]:
    """Weights of variance 2 / inputs, and no offsets."""
    keys = jax.random.split(jax.random.key(7), 3)
    shapes = {"a": (3, 3, 1, 16), "b": (3, 3, 16, 32), "c": (128, 10)}
    weights = {
        name: jax.random.normal(key, shape) * (2 / np.prod(shape[:-1])) ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return weights | {f"{name}0": jnp.zeros(shape[-1]) for name, shape in shapes.items()}


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    for name in ("a", "b"):
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x[None], params[name], (1, 1), "SAME", dimension_numbers=layout
        )[0]
        x = jax.nn.relu(x + params[f"{name}0"][None, None])
        x = x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2, -1).max(axis=(1, 3))
    return x.reshape(-1) @ params["c"] + params["c0"]


def loss(params: dict[str, jax.Array], record: dict[str, jax.Array]) -> jax.Array:
    return -jax.nn.log_softmax(logits(params, record["x"]))[record["y"]]


def problem() -> Any:
    return dpjax.problems.Risk(loss, start())


def solver(way: str, records: int, epsilon: float, *, fast: bool) -> Any:
    budget = dpjax.Budget(epsilon, DELTA, "add_or_remove_one")
    size, epochs = (256, 1) if fast else (64, 20)
    fields = {"batch_size": size, "clip_norm": 1.0}
    if way == "DP-SGD":
        steps = round(epochs * records / size)
        return DPSGD.for_budget(problem(), records, budget, steps=steps, **fields)
    noise = "auto" if way == "auto" else "buffered"
    if noise == "buffered" and fast:
        epochs = 2
    return DPFTRL.for_budget(problem(), records, budget, noise=noise, epochs=epochs, **fields)


def accuracy(made: Any, train: Any, test: Any, seed: int) -> float:
    key = jax.random.key(seed)
    params = dpjax.solve(made, problem(), train, key=key, progress=False).params
    return graded(params, test)


def graded(params: Any, test: Any) -> float:
    guesses = jax.vmap(logits, in_axes=(None, 0))(params, test["x"]).argmax(axis=1)
    return float(jnp.mean(guesses == test["y"]))


def summary(result: dict[str, Any]) -> str:
    """Markdown tables: a row an epsilon and step size; and what has no options."""
    ways = (*OURS, *THEIRS)
    title = ["epsilon", "step size", *ways, "bands of auto"]
    points = {(p["epsilon"], p["factor"], p["way"]): p for p in result["points"]}
    rows = []
    for epsilon, factor in dict.fromkeys(key[:2] for key in points):
        here = [points.get((epsilon, factor, way)) for way in ways]
        shown = [f"{point['accuracy']:.3f}" if point else "" for point in here]
        bands = points[epsilon, factor, "auto"]["bands"]
        rows.append([f"{epsilon:g}", f"x {factor:g}", *shown, str(bands)])
    told = []
    for way in DEFAULTS:
        here = [p for p in result["points"] if p["way"] == way]
        figures = [f"{p['accuracy']:.3f} at epsilon {p['epsilon']:g}" for p in here]
        told += [f"`{way}`: {', '.join(figures)}."] if here else []
    return "\n\n".join([table(title, rows), *told])
