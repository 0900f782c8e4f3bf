"""The table of docs/accounting.md, of releases from one batch, is what accountants give."""

import re
from pathlib import Path

import pytest
from dp_accounting import dp_event as dpe
from dp_accounting.pld import PLDAccountant

import dpjax

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<histogram>Gaussian|Laplace) (?P<scale>[\d.]+) \| Gaussian (?P<z>[\d.]+) "
    r"\| (?P<rate>[\d.]+) \| (?P<steps>\d+) "
    r"\| (?P<independent>[\d.]+) \| \*\*(?P<joint>[\d.]+)\*\* \|$",
    re.MULTILINE,
)
ROWS = [row.groupdict() for row in ROW.finditer(TEXT)]


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
    # rounded to 2 decimals in the table, and up to 1e-3 apart by the grids of the accountants
    assert joint == pytest.approx(float(row["joint"]), abs=6e-3)

    accountant = PLDAccountant()
    for event in (first, dpe.GaussianDpEvent(z)):
        accountant.compose(dpe.PoissonSampledDpEvent(rate, event), steps)
    assert accountant.get_epsilon(1e-5) == pytest.approx(float(row["independent"]), abs=6e-3)
    assert joint > accountant.get_epsilon(1e-5)


def test_the_readme_says_the_same():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (float(ROWS[0]["rate"]), int(ROWS[0]["steps"])) == (0.02, 1000)
    assert f"have epsilon {ROWS[0]['joint']} together" in text
    assert f"claims {ROWS[0]['independent']}" in text
