"""The ledger on a file: what is written, what is refused, what two ledgers on it agree on."""

import json
import os

import filelock
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

from dpjax.privacy import Budget, BudgetExceeded, Guarantee, Ledger
from dpjax.privacy.accounting._event_json import guarantee_from_json, guarantee_to_json

BUDGET = Budget(1.0, 1e-5)
QUERY = Guarantee(dpe.GaussianDpEvent(10.0))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def test_what_was_spent_is_there_when_it_is_opened_again(path):
    with Ledger(path, BUDGET) as ledger:
        ledger.spend(QUERY, label="épreuve", run="a", part="east")
        while ledger.fits(QUERY):
            ledger.spend(QUERY)
        entries, text = ledger.entries, ledger.table()
    again = Ledger(str(path), BUDGET)
    assert again.entries == entries
    assert again.table() == text
    assert again.spent() == ledger.spent() > 0
    assert again.budget.relation.name == "ADD_OR_REMOVE_ONE"
    with pytest.raises(BudgetExceeded):
        again.spend(QUERY)
    assert Ledger(path).entries == entries  # with the stored budget


def test_two_ledgers_on_one_file_see_each_other(path):
    here, there = Ledger(path, BUDGET), Ledger(path, BUDGET)
    here.spend(QUERY, run="a")
    assert there.entries == here.entries
    there.spend(QUERY, run="a")
    assert len(there.entries) == 1
    while there.fits(QUERY):
        there.spend(QUERY)
    assert not here.fits(QUERY)
    with pytest.raises(BudgetExceeded):
        here.spend(QUERY)


def test_the_relation_is_fixed_by_the_first_spend_and_kept(path):
    Ledger(path, BUDGET).spend(Guarantee(dpe.GaussianDpEvent(30.0), "replace_one"))
    with pytest.raises(ValueError, match="replace_one, got one under add_or_remove_one"):
        Ledger(path, BUDGET).spend(QUERY)
    Ledger(path, Budget(1.0, 1e-5, "replace_one"))
    with pytest.raises(ValueError, match=r"relation must .* replace_one, got add_or_remove_one"):
        Ledger(path, Budget(1.0, 1e-5, "add_or_remove_one"))


def test_a_relation_given_later_is_fixed_then(path):
    Ledger(path, BUDGET)
    Ledger(path, Budget(1.0, 1e-5, "replace_one"))
    with pytest.raises(ValueError, match="replace_one, got one under add_or_remove_one"):
        Ledger(path, BUDGET).spend(QUERY)


def test_other_terms_than_the_stored_ones_are_refused(path):
    Ledger(path, BUDGET)
    with pytest.raises(ValueError, match=r"epsilon=1\.0 and delta=1e-05, got 2\.0 and 1e-05"):
        Ledger(path, Budget(2.0, 1e-5))
    with pytest.raises(ValueError, match=r"epsilon=1\.0 and delta=1e-05, got 1\.0 and 1e-06"):
        Ledger(path, Budget(1.0, 1e-6))
    with pytest.raises(ValueError, match=r"adaptive must be as stored .*, True, got False"):
        Ledger(path, BUDGET, adaptive=False)
    assert Ledger(path).adaptive


def test_adaptive_is_asked_for_unless_it_was_given_up(tmp_path):
    path = tmp_path / "fixed.json"
    Ledger(path, BUDGET, adaptive=False)
    with pytest.raises(ValueError, match=r"adaptive must be as stored .*, False, got True"):
        Ledger(path, BUDGET)
    assert not Ledger(path).adaptive
    assert not Ledger(path, BUDGET, adaptive=False).adaptive


DAMAGE = {
    "empty": lambda text: "",
    "half": lambda text: text[: len(text) // 2],
    "foreign": lambda text: '{"epsilon": 1.0}',
    "a list": lambda text: "[]",
    "not text": lambda text: "\x00\x01",
    "a later version": lambda text: text.replace('"version": 1', '"version": 2'),
    "one entry less": lambda text: json.dumps(
        {**json.loads(text), "content": {**json.loads(text)["content"], "entries": []}}
    ),
    "more noise": lambda text: text.replace("10.0", "99.0"),
    "a larger budget": lambda text: text.replace('"epsilon": 1.0', '"epsilon": 9.0'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_an_error_and_stays_as_it_is(path, damage):
    ledger = Ledger(path, BUDGET)
    ledger.spend(QUERY)
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    for use in (
        lambda: ledger.spend(QUERY),
        lambda: ledger.entries,
        lambda: Ledger(path, BUDGET),
        lambda: Ledger(path),
    ):
        with pytest.raises(ValueError, match="cannot be read as a ledger"):
            use()
    assert path.read_text() == damaged
    assert "unreadable" in repr(ledger)


def test_bytes_that_are_no_text_are_an_error(path):
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read as a ledger"):
        Ledger(path, BUDGET)


def test_a_file_that_is_gone_is_not_started_anew(path):
    ledger = Ledger(path, BUDGET)
    ledger.spend(QUERY)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="moved or removed since"):
        ledger.spend(QUERY)
    assert not path.exists()


def test_a_folder_or_budget_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"existing folder, got .*nowhere"):
        Ledger(tmp_path / "nowhere" / "ledger.json", BUDGET)
    with pytest.raises(FileNotFoundError, match="give a budget"):
        Ledger(tmp_path / "ledger.json")
    with pytest.raises(TypeError, match=r"must be a dpjax\.Budget\(epsilon, delta\), got float"):
        Ledger(tmp_path / "ledger.json", 1.0)


def test_a_link_is_followed(path, tmp_path):
    Ledger(path, BUDGET)
    link = tmp_path / "link.json"
    os.symlink(path, link)
    Ledger(link).spend(QUERY)
    assert len(Ledger(path).entries) == 1
    assert link.is_symlink()


def test_what_a_dead_writer_left_is_no_harm(path):
    ledger = Ledger(path, BUDGET)
    (path.parent / "ledger.json.tmp").write_text("half a led")
    ledger.spend(QUERY)
    assert len(Ledger(path).entries) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["ledger.json", "ledger.json.lock"]


def test_a_lock_that_is_held_is_a_clear_error(path):
    ledger = Ledger(path, BUDGET, timeout=0.05)
    with (
        filelock.FileLock(f"{path}.lock"),
        pytest.raises(TimeoutError, match="nothing was spent"),
    ):
        ledger.spend(QUERY)
    assert ledger.entries == ()
    ledger.spend(QUERY)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (dpe.GaussianDpEvent(np.float32(0.1)), "replace_one"),
        (dpe.GaussianDpEvent(float("inf")), "replace_special"),
        (dpe.ComposedDpEvent([dpe.LaplaceDpEvent(0.1 + 0.2), dpe.NoOpDpEvent()]), None),
        (
            dpe.SelfComposedDpEvent(
                dpe.PoissonSampledDpEvent(1 / 3, dpe.GaussianDpEvent(2**-0.5)), np.int64(7)
            ),
            None,
        ),
        (dpe.MixtureOfGaussiansDpEvent(1.0, np.array([0.0, 1.0]), (0.1, 0.9)), None),
        (dpe.SampledWithoutReplacementDpEvent(100, 3, dpe.GaussianDpEvent(5)), "replace_one"),
        (dpe.TruncatedSubsampledGaussianDpEvent(100, 0.1, 15, 3.0), None),
        (dpe.DiscreteLaplaceDpEvent(0.7, 2), None),
        (dpe.RepeatAndSelectDpEvent(dpe.GaussianDpEvent(5.0), 5, 1), None),
        (dpe.NonPrivateDpEvent(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_guarantees_read_back_as_they_were(event, relation):
    guarantee = Guarantee(event, relation or "add_or_remove_one", 1 / 3e7)
    text = json.dumps(guarantee_to_json(guarantee), allow_nan=False)
    assert guarantee_from_json(json.loads(text), guarantee.relation) == guarantee


def test_only_events_of_the_library_are_built():
    for event in (
        {"class": "Popen", "args": "true"},
        {"class": "DpEvent"},
        {"class": "UnsupportedDpEvent"},
        {"class": "GaussianDpEvent", "noise": 1.0},
        {"class": "GaussianDpEvent", "noise_multiplier": -1.0},
        {"module": "os"},
        3,
    ):
        with pytest.raises(ValueError):
            guarantee_from_json({"event": event, "failure_probability": 0.0}, QUERY.relation)

    class Own(dpe.GaussianDpEvent):
        pass

    with pytest.raises(TypeError, match="one of dp_accounting"):
        guarantee_to_json(Guarantee(Own(1.0)))
