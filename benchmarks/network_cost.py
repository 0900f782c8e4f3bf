"""Time and memory of a step of DP-SGD on three networks, beside jax_privacy and opacus.

A multilayer perceptron (784-256-10), two convolutions of 16 and 32 channels on 28 x 28 pixels, and
a transformer of two blocks (256 tokens known, 32 a record, width 64, 4 heads): float32 (products of
the networks at TF32 on a GPU, for each library), batches of 256 made-up records, all of them in the
batch, plain descent, clip norm 1. Each library runs in a process of its own; a step is the median
over blocks of steps, the first left out. Memory is what the process's peak rises by from just
before the first step, compilation and the copies that a library keeps included, on an accelerator
that of the device; for programs of jax also what the compiler plans for temporaries. dpjax and
jax_privacy at their defaults (dpjax: microbatches of at most 256 MiB of gradients; jax_privacy: the
whole batch at once) and at 32 records at a time; opacus by `make_private`, and with ghost norms;
and plain descent on the mean loss by `jax.grad`. The ratio of steps at 32 records at a time is of
one process, which runs the two libraries in turn.
"""

import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _runner, networks
from benchmarks._text import table
from dpjax.solvers import DPSGD

PEERS = ("jax-privacy", "opacus")
BATCH, MICRO = 256, 32
LENGTH, WORDS, WIDTH, HEADS, BLOCKS = 32, 256, 64, 4, 2
NETWORKS = ("perceptron", "convolutions", "transformer")
PAIRED = "in turns"
LIBRARIES = (
    "dpjax",
    f"dpjax, {MICRO} at a time",
    "jax_privacy",
    f"jax_privacy, {MICRO} at a time",
    "opacus",
    "opacus, ghost norms",
    "jax, not private",
)
Params = dict[str, jax.Array]
Steps = Callable[[int], Any]  # runs so many steps


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """A process for each network and library that is installed."""
    del data
    chosen = NETWORKS[:1] if fast else NETWORKS
    counts, pairs = ((2, 2), (2, 3)) if fast else ((5, 5), (12, 3))
    # an accelerator's host has cores to spare: compiled side by side, timed in turn
    accelerated = jax.default_backend() != "cpu"
    if accelerated and not fast:
        counts, pairs = (7, 100), (12, 50)
    workers = ThreadPoolExecutor(8 if accelerated else 1)
    with workers as pool, tempfile.TemporaryDirectory() as folder:
        ask = functools.partial(
            pool.submit, _process, {_runner.TURNS: f"{folder}/turns"} | os.environ
        )
        rows = [ask(network, library, *counts) for network in chosen for library in LIBRARIES]
        ratios = {network: ask(network, PAIRED, *pairs) for network in chosen}
        found = [row.result() for row in rows]
        told = {network: ratio.result() for network, ratio in ratios.items()}
    return {"batch": BATCH, "rows": [row for row in found if row is not None], "ratios": told}


def _process(
    turns: dict[str, str], network: str, library: str, *counts: int
) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.network_cost", network, library, *map(str, counts)]
    done = subprocess.run(command, env=turns, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] | None = json.loads(done.stdout.splitlines()[-1])
    print(network, library, told, flush=True)
    return told


def paired(network: str, blocks: int, steps: int) -> dict[str, float] | None:
    """Quartiles of dpjax's time over jax_privacy's, both 32 records at a time, in turns."""
    calls = [made and made[0] for made in (_dpjax(network, "32"), _jax_privacy(network, "32"))]
    if None in calls:
        return None
    for call in calls:
        call(steps)  # compiles
    seconds = np.zeros((blocks, 2))
    with _runner.turn():
        for block in range(blocks):
            for which in (0, 1) if block % 2 else (1, 0):
                start = time.perf_counter()
                calls[which](steps)
                seconds[block, which] = time.perf_counter() - start
    quartiles = np.quantile(seconds[:, 0] / seconds[:, 1], [0.25, 0.5, 0.75])
    return dict(zip(("low", "median", "high"), quartiles.tolist(), strict=True))


def measured(network: str, library: str, blocks: int, steps: int) -> dict[str, Any] | None:
    """A row, from this process; None where the library is not installed."""
    name, _, how = library.partition(", ")
    makers = {"dpjax": _dpjax, "jax_privacy": _jax_privacy, "opacus": _opacus, "jax": _jax}
    made = makers[name](network, how)
    if made is None:
        return None
    call, planned = made
    before, start = _peak(), time.perf_counter()
    call(steps)
    first, seconds = time.perf_counter() - start, []
    with _runner.turn():
        for _ in range(blocks):
            start = time.perf_counter()
            call(steps)
            seconds.append((time.perf_counter() - start) / steps)
    row: dict[str, Any] = {"network": network, "library": library, "first_seconds": first}
    row |= {"seconds_per_step": float(np.median(seconds)), "peak_bytes": _peak() - before}
    return row | {"planned_bytes": None if planned is None else planned(steps)}


def _peak() -> int:
    """Of the device, or, on CPU, of the process."""
    if jax.default_backend() != "cpu":
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            return int(torch.cuda.max_memory_allocated())
        return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def records(network: str) -> dict[str, np.ndarray]:
    """Noise as features, or tokens; labels of ten classes."""
    rng = np.random.default_rng(0)
    shape = {"perceptron": (784,), "convolutions": (28, 28, 1), "transformer": (LENGTH,)}[network]
    y = rng.integers(10, size=BATCH).astype(np.int32)
    if network == "transformer":
        return {"x": rng.integers(WORDS, size=(BATCH, *shape)).astype(np.int32), "y": y}
    return {"x": rng.normal(size=(BATCH, *shape)).astype(np.float32), "y": y}


def start(network: str) -> Params:
    """Weights of variance 1 / inputs, offsets 0, scales 1."""
    if network == "perceptron":
        shapes: dict[str, tuple[int, ...]] = {"a": (784, 256), "a0": (256,)}
        shapes |= {"c": (256, 10), "c0": (10,)}
    elif network == "convolutions":
        shapes = {"a": (3, 3, 1, 16), "a0": (16,), "b": (3, 3, 16, 32), "b0": (32,)}
        shapes |= {"c": (7 * 7 * 32, 10), "c0": (10,)}
    else:
        shapes = {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "c": (WIDTH, 10)}
        for k in range(BLOCKS):
            shapes |= {f"{k}q": (WIDTH, 3 * WIDTH), f"{k}q0": (3 * WIDTH,)}
            shapes |= {f"{k}m": (WIDTH, WIDTH), f"{k}m0": (WIDTH,)}
            shapes |= {f"{k}up": (WIDTH, 4 * WIDTH), f"{k}up0": (4 * WIDTH,)}
            shapes |= {f"{k}down": (4 * WIDTH, WIDTH), f"{k}down0": (WIDTH,)}
        shapes |= {"c0": (10,)}
    rng = np.random.default_rng(1)
    return {
        name: jnp.zeros(shape)
        if len(shape) == 1
        else jnp.asarray(rng.normal(size=shape) / np.prod(shape[:-1]) ** 0.5, jnp.float32)
        for name, shape in shapes.items()
    }


def logits(network: str, p: Params, x: jax.Array) -> jax.Array:
    """Of one record."""
    if network == "perceptron":
        return jax.nn.relu(x @ p["a"] + p["a0"]) @ p["c"] + p["c0"]
    if network == "convolutions":
        return networks.logits(p, x)
    h = p["words"][x] + p["places"]
    for k in range(BLOCKS):
        q, key, v = jnp.split(_normal(h) @ p[f"{k}q"] + p[f"{k}q0"][None], 3, axis=1)
        q, key, v = (a.reshape(LENGTH, HEADS, -1).swapaxes(0, 1) for a in (q, key, v))
        weights = jax.nn.softmax(q @ key.swapaxes(1, 2) / q.shape[2] ** 0.5)
        mixed = (weights @ v).swapaxes(0, 1).reshape(LENGTH, WIDTH)
        h = h + mixed @ p[f"{k}m"] + p[f"{k}m0"][None]
        up = jax.nn.relu(_normal(h) @ p[f"{k}up"] + p[f"{k}up0"][None])
        h = h + up @ p[f"{k}down"] + p[f"{k}down0"][None]
    return h.mean(axis=0) @ p["c"] + p["c0"]


def _normal(h: jax.Array) -> jax.Array:
    return (h - h.mean(axis=1, keepdims=True)) / jnp.sqrt(h.var(axis=1, keepdims=True) + 1e-5)


def _loss(network: str) -> Callable[[Params, dict[str, jax.Array]], jax.Array]:
    def loss(params: Params, record: dict[str, jax.Array]) -> jax.Array:
        return -jax.nn.log_softmax(logits(network, params, record["x"]))[record["y"]]

    return loss


def _dpjax(network: str, how: str) -> tuple[Steps, Callable[[int], int]]:
    problem = dpjax.problems.Risk(_loss(network), start(network))
    sampler = dpjax.sampling.FullBatch(1)
    solver = DPSGD(sampler, 1.0, 1.0, 0.1, float(BATCH), microbatch_size=MICRO if how else None)
    mask = jnp.ones(BATCH, bool)

    def step(state: Any, batch: Any) -> Any:
        return solver.step(problem, batch, mask, state)[0]

    return _compiled(step, solver.init(problem, key=jax.random.key(0)), network)


def _jax_privacy(network: str, how: str) -> tuple[Steps, Callable[[int], int]] | None:
    try:
        from jax_privacy import clipping, noise_addition
    except ImportError:
        return None
    single = _loss(network)

    def loss(params: Params, batch: Any) -> jax.Array:
        return jax.vmap(single, in_axes=(None, 0))(params, batch).mean()

    gradient = clipping.clipped_grad(
        loss, l2_clip_norm=1.0, batch_argnums=1, microbatch_size=MICRO if how else None
    )
    noise = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))
    params = start(network)

    def step(state: Any, batch: Any) -> Any:
        params, kept = state
        noisy, kept = noise.update(gradient(params, batch), kept)
        return jax.tree.map(lambda p, g: p - 0.1 * g / BATCH, params, noisy), kept

    return _compiled(step, (params, noise.init(params)), network)


def _jax(network: str, how: str) -> tuple[Steps, Callable[[int], int]]:
    """Plain descent on the mean loss."""
    del how
    single = _loss(network)

    def loss(params: Params, batch: Any) -> jax.Array:
        return jax.vmap(single, in_axes=(None, 0))(params, batch).mean()

    def step(params: Params, batch: Any) -> Params:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, batch))

    return _compiled(step, start(network), network)


def _compiled(
    step: Callable[[Any, Any], Any], state: Any, network: str
) -> tuple[Steps, Callable[[int], int]]:
    """A scan over steps, and what the compiler plans for its temporaries."""
    batch = jax.tree.map(jnp.asarray, records(network))

    @functools.partial(jax.jit, static_argnums=2)
    def scan(state: Any, batch: Any, steps: int) -> Any:
        return jax.lax.scan(lambda s, _: (step(s, batch), None), state, length=steps)[0]

    def planned(steps: int) -> int:
        return int(scan.lower(state, batch, steps).compile().memory_analysis().temp_size_in_bytes)

    return lambda steps: jax.block_until_ready(scan(state, batch, steps)), planned


def _opacus(network: str, how: str) -> tuple[Steps, None] | None:
    try:
        import opacus
        import torch
    except ImportError:
        return None
    warnings.simplefilter("ignore")  # that the generator is not secure, and other advice
    torch.manual_seed(0)
    on = "cpu" if jax.default_backend() == "cpu" else "cuda"
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as jax has it
    model, data = _torch_model(torch, network).to(on), records(network)
    x = torch.tensor(data["x"], dtype=torch.long if network == "transformer" else None, device=on)
    y = torch.tensor(data["y"], dtype=torch.long, device=on)
    if network == "convolutions":
        x = x.permute(0, 3, 1, 2).contiguous()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    made = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        **({"criterion": torch.nn.CrossEntropyLoss(), "grad_sample_mode": "ghost"} if how else {}),
    )
    private, optimizer = made[:2]
    loss = made[2] if how else torch.nn.CrossEntropyLoss()

    def call(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(private(x), y).backward()
            optimizer.step()
        if on == "cuda":
            torch.cuda.synchronize()

    return call, None


def _torch_model(torch: Any, network: str) -> Any:
    nn = torch.nn
    if network == "perceptron":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    if network == "convolutions":
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(7 * 7 * 32, 10))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
            self.q, self.m = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, h: Any) -> Any:
            q, key, v = self.q(self.norm(h)).chunk(3, dim=2)
            q, key, v = (a.reshape(len(h), LENGTH, HEADS, -1).transpose(1, 2) for a in (q, key, v))
            weights = torch.softmax(q @ key.transpose(2, 3) / q.shape[3] ** 0.5, dim=3)
            h = h + self.m((weights @ v).transpose(1, 2).reshape(len(h), LENGTH, WIDTH))
            return h + self.down(torch.relu(self.up(self.norm(h))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.out = nn.Linear(WIDTH, 10)

        def forward(self, x: Any) -> Any:
            h = self.words(x) + self.places(torch.arange(LENGTH, device=x.device).repeat(len(x), 1))
            for block in self.blocks:
                h = block(h)
            return self.out(h.mean(dim=1))

    return Model()


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a network and library, and what the libraries take in turns."""
    title = ["network", "library", "ms a step", "peak rises by, MiB", "planned, MiB", "s, first"]
    rows = [
        [
            row["network"],
            row["library"],
            f"{1e3 * row['seconds_per_step']:.3g}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            "" if row["planned_bytes"] is None else f"{row['planned_bytes'] / 2**20:.0f}",
            f"{row['first_seconds']:.1f}",
        ]
        for row in result["rows"]
    ]
    told = [
        f"{network} {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        for network, ratio in result.get("ratios", {}).items()
        if ratio
    ]
    if not told:
        return table(title, rows)
    return (
        table(title, rows)
        + "\n\nTime of a dpjax step over that of jax_privacy, 32 records at a time, interleaved\n"
        + f"in one process, median and quartiles: {', '.join(told)}."
    )


if __name__ == "__main__":
    _network, _library, _blocks, _steps = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    if _library == PAIRED:
        print(json.dumps(paired(_network, _blocks, _steps)))
    else:
        print(json.dumps(measured(_network, _library, _blocks, _steps)))
