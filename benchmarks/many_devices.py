"""Bytes a device, and what devices exchange, on 1, 2, 4 and 8 simulated devices.

Four things are spread with `jax.sharding`: records (Poisson batches drawn by shares, or across
them), parameters, vertices and the universe of query release. Bytes are those of one device: what
the compiled loop takes as arguments and holds beside them, as the compiler counts, and its share of
data and state. Exchanges are the collectives in the compiled program, where each is once a step.

All devices are threads of one CPU and share its cores and its memory: step times are shown for what
the exchange and eight programs in place of one cost, and cannot fall.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._text import table

DEVICES = 8


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """A row for each thing that is spread and each number of devices."""
    del data
    flags = [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={DEVICES}"]
    flags += ["--xla_backend_optimization_level=0"] * fast  # compiling is most of it
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags).strip(), "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks._many_devices_child", str(path)]
        subprocess.run([*command, *["--fast"] * fast], check=True, cwd=root, env=environment)
        return {"rows": json.loads(path.read_text())}


def summary(result: dict[str, Any]) -> str:
    """Markdown table of bytes, exchanges and times."""
    head = ["spread", "devices", "data, MB", "state, MB", "arguments, MB", "temporaries, MB"]
    rows = []
    for row in result["rows"]:
        parts = ("data", "state", "argument", "temp")
        time = row["milliseconds_per_step"]
        rows.append(
            [
                f"{row['axis']} ({row['solver']}, {row['size']:,})",
                str(row["devices"]),
                *(_mega(row[f"{part}_bytes"]) for part in parts),
                _mega(exchanged(row)),
                f"{time['median']:.2f} ({time['lower_quartile']:.2f} to "
                f"{time['upper_quartile']:.2f})",
            ]
        )
    return table([*head, "exchanged, MB a step", "ms a step (quartiles)"], rows)


def readme(result: dict[str, Any]) -> str:
    """Markdown table of bytes a device, on one and on eight."""
    rows = []
    for row in result["rows"]:
        if row["devices"] != DEVICES:
            continue
        (one,) = (r for r in result["rows"] if r["devices"] == 1 and r["axis"] == row["axis"])
        before, after = (r["argument_bytes"] + r["temp_bytes"] for r in (one, row))
        rows.append(
            [
                f"{row['axis']}, {row['size']:,} ({row['solver']})",
                _mega(before),
                _mega(after),
                f"{before / after:.1f}",
                _mega(exchanged(row)),
            ]
        )
    head = ["spread", "MB a device, 1 device", f"{DEVICES} devices", "ratio", "MB exchanged a step"]
    return table(head, rows)


def exchanged(row: dict[str, Any]) -> int:
    """Bytes of all collectives of a step."""
    return sum(each["bytes"] * each["times"] for each in row["exchanges"])


def _mega(count: float) -> str:
    return f"{count / 1e6:.3g}"
