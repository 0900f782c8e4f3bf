"""What the README says is true: its commands, its code and its table of epsilons."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from dp_accounting import dp_event as dpe
from dp_accounting.pld import PLDAccountant

import dpjax

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "readme.py"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<histogram>Gaussian|Laplace) (?P<scale>[\d.]+) \| Gaussian (?P<z>[\d.]+) "
    r"\| (?P<rate>[\d.]+) \| (?P<steps>\d+) "
    r"\| (?P<independent>[\d.]+) \| \*\*(?P<joint>[\d.]+)\*\* \|$",
    re.MULTILINE,
)
ROWS = [row.groupdict() for row in ROW.finditer(TEXT)]


def readme(what):
    command = [sys.executable, "-W", "error", str(SCRIPT), what]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_python_blocks_run_as_in_a_fresh_interpreter():
    done = readme("run")
    assert done.returncode == 0, done.stderr
    assert "epsilon   1.0000" in done.stdout


@pytest.mark.parametrize(("purpose", "end"), [("job", "-m dpjax"), ("test", "-n auto")])
def test_each_setup_is_one_command_from_a_bare_clone(purpose, end):
    command = readme(purpose).stdout.strip()
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert command.endswith(end)
    assert "\n" not in command


def test_table_of_epsilons_is_complete():
    assert len(ROWS) == 6


@pytest.mark.parametrize("row", ROWS, ids=lambda r: "-".join(r.values()))
def test_table_of_epsilons(row):
    rate, steps = float(row["rate"]), int(row["steps"])
    scale, z = float(row["scale"]), float(row["z"])
    laplace = row["histogram"] == "Laplace"
    first = dpe.LaplaceDpEvent(scale) if laplace else dpe.GaussianDpEvent(scale)
    noise = {"laplace_scale": scale} if laplace else {"histogram_gaussian": scale}
    joint = dpjax.privacy.joint_poisson_epsilon(rate, steps, 1e-5, gaussian=z, **noise)
    # rounded to 3 decimals in the table, and up to 1e-3 apart by the grids of the accountants
    assert joint == pytest.approx(float(row["joint"]), abs=1.5e-3)

    accountant = PLDAccountant()
    for event in (first, dpe.GaussianDpEvent(z)):
        accountant.compose(dpe.PoissonSampledDpEvent(rate, event), steps)
    assert accountant.get_epsilon(1e-5) == pytest.approx(float(row["independent"]), abs=1.5e-3)
    assert joint > accountant.get_epsilon(1e-5)
