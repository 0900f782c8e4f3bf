"""The ledger against full disks, tiny divergences and huge numbers."""

import json
import os
import stat

import numpy as np
import pytest
from dp_accounting import dp_event as dpe

from dpjax.privacy import Budget, BudgetExceeded, Guarantee, Ledger
from dpjax.privacy.accounting._renyi import ORDERS, renyi
from dpjax.privacy.ledger._state import Filter, Plan

BUDGET = Budget(1.0, 1e-5)
QUERY = Guarantee(dpe.GaussianDpEvent(30.0))


class Disk:
    """Notes what reaches the disk, in order, and fails at the n-th of these calls."""

    def __init__(self, monkeypatch):
        self.calls, self.fail_at = [], None
        for name in ("fsync", "replace"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))
        monkeypatch.setattr(json, "dump", self._noting("dump", json.dump))

    def _noting(self, name, call):
        def noting(*args, **options):
            folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            self.calls.append("fsync folder" if folder else name)
            if len(self.calls) == self.fail_at:
                if name == "dump":
                    args[1].write('{"format":')
                raise OSError(28, "No space left on device")
            return call(*args, **options)

        return noting


def test_a_full_disk_loses_nothing_and_acknowledges_nothing(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.json", BUDGET)
    ledger.spend(QUERY)
    disk = Disk(monkeypatch)
    ledger.spend(QUERY)
    assert disk.calls == ["dump", "fsync", "replace", "fsync folder"]
    for failing, last in enumerate(disk.calls.copy(), start=1):
        before = len(ledger.entries)
        disk.calls, disk.fail_at = [], failing
        with pytest.raises(OSError, match="No space"):
            ledger.spend(QUERY)
        disk.fail_at = None
        # once it has its name it counts, though nobody was told
        recorded = before + (last == "fsync folder")
        assert len(Ledger(tmp_path / "ledger.json").entries) == len(ledger.entries) == recorded
        ledger.spend(QUERY)
        assert len(ledger.entries) == recorded + 1


@pytest.mark.parametrize(("rate", "noise"), [(1e-9, 10.0), (1e-12, 100.0), (1e-14, 1.0)])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_tiny_rates_have_divergences_of_full_precision(rate, noise, relation):
    """There the divergence is order / 2 times chi^2, which for Gaussians has a closed form."""
    event = dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise))
    squared = np.exp(noise**-2) - 1
    if relation == "replace_one":
        squared = 2 * (np.exp(noise**-2) - np.exp(-(noise**-2)))
    some = ORDERS < 3
    computed = renyi(Guarantee(event, relation)._id).divergence[some]
    expected = ORDERS[some] * rate**2 * squared / 2
    assert np.all(computed >= expected * (1 - 1e-12))
    np.testing.assert_allclose(computed, expected, rtol=5e-9)


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 800.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.999])
def test_what_is_as_good_as_public_fits_no_budget(epsilon, delta):
    ledger = Ledger(Budget(epsilon, delta))
    with pytest.raises(BudgetExceeded):
        ledger.spend(Guarantee(dpe.NonPrivateDpEvent()))
    with pytest.raises(BudgetExceeded):
        ledger.spend(Guarantee(dpe.NoOpDpEvent(), failure_probability=0.9999))
    ledger.spend(Guarantee(dpe.NoOpDpEvent()))


@pytest.mark.parametrize("share", [1 / 16, 1 / 2])
@pytest.mark.parametrize(("epsilon", "delta", "order"), [(0.1, 1e-8, 60.0), (4.0, 1e-3, 3.0)])
def test_what_the_three_caps_cost_together_is_delta(epsilon, delta, order, share):
    """Adversaries reach all three at once; a cap that forgets the others would pass alone."""
    caps = Filter(epsilon, delta, Plan(order, share)).caps
    # Canonne, Kamath and Steinke: the largest E_P[1 - e^(epsilon - loss)]+ at this divergence
    loss = np.linspace(epsilon, epsilon + 40, 1_000_001)
    most = np.max(-np.expm1(epsilon - loss) * np.exp((order - 1) * (caps.divergence - loss)))
    total = most + caps.infinite + (1 + np.exp(epsilon)) * caps.failure
    assert 0.999 * delta < total <= delta


def test_infinite_losses_count_once_a_step():
    joint = dpe.ComposedDpEvent([dpe.LaplaceDpEvent(2.0), dpe.GaussianDpEvent(2.0)])
    step = dpe.PoissonSampledDpEvent(0.1, joint)
    one = renyi(Guarantee(step)._id).infinite
    many = renyi(Guarantee(dpe.SelfComposedDpEvent(step, 1000))._id).infinite
    assert 0 < one < 1e-15
    np.testing.assert_allclose(many, 1000 * one, rtol=1e-12)
