"""`python -m dpjax release`: tables and synthetic rows of a CSV file, and what it refuses."""

import csv
import json
import math

import numpy as np
import pytest

import dpjax
from dpjax import _release_command
from dpjax.__main__ import main
from dpjax._csv_files import read_csv
from dpjax.queries import Categorical, Date, Domain, Numeric

DOMAIN = Domain.from_columns(
    {
        "age": Numeric(20, 60, bins=2, integer=True, missing=True),
        "job": Categorical(["clerk", "cook"], "other"),
        "day": Date("2020-01-01", "2020-12-31", "quarter", missing=True),
    }
)
N = 4_000
PEOPLE = 1_000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table of which a quarter is young cooks in spring, and three quarters old clerks."""
    folder = tmp_path_factory.mktemp("release")
    rows = [["who", "age", "job", "day"]]
    for i in range(N):
        young = i % 4 == 0
        rows.append([str(i % PEOPLE), *(["25", "cook", "2020-05-01"] if young else ["?", "x", ""])])
    with (folder / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (folder / "schema.json").write_text(DOMAIN.to_json())
    return folder


@pytest.mark.parametrize("last", ["5", ""])
def test_a_missing_value_of_the_only_column_is_a_row(last, tmp_path, capsys):
    """Else their public number would follow from values."""
    domain = Domain.from_columns({"age": Numeric(0, 10, bins=2, integer=True, missing=True)})
    (tmp_path / "schema.json").write_text(domain.to_json())
    (tmp_path / "data.csv").write_text("\n".join(["age", *["7"] * 20, last, ""]))
    words = [str(tmp_path / "data.csv"), "--schema", str(tmp_path / "schema.json")]
    assert main(["release", *words, "--epsilon", "1", "--seed", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_records"] == 21


def _words(files, **changes):
    given = {"schema": files / "schema.json", "epsilon": 1, "seed": 0} | changes
    words = [str(files / "data.csv")]
    for name, value in given.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, np.atleast_1d(value))]
    return words


def test_tables_and_rows(files, tmp_path, capsys):
    output = tmp_path / "rows.csv"
    words = _words(files, output=output, rows=2_000, target="job")
    assert main(["release", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["epsilon"] <= 1
    assert "tables with 'job' have 8 times the precision" in told["reason"]
    assert told["delta"] == min(1e-5, N**-1.5)
    assert (told["num_records"], told["relation"], told["rows"]) == (N, "replace_one", 2_000)
    first = told["tables"][0]
    assert first["age"] == ["[20, 40)", "[40, 60]", None]
    np.testing.assert_allclose(first["count"], [1_000, 0, 3_000], atol=120)
    assert all(0 < s * N < 40 for s in first["stddev"])
    # by the same schema the rows are read again
    table = read_csv(output, DOMAIN, ["", "?"])
    codes = DOMAIN.encode(table)
    shares = np.bincount(codes[:, 1], minlength=3) / len(codes)
    np.testing.assert_allclose(shares, [0, 0.25, 0.75], atol=0.05)
    spring = [str(day) for day in table["day"] if day is not None]
    assert np.mean([day.startswith(("2020-04", "2020-05", "2020-06")) for day in spring]) > 0.9


def test_the_tables_asked_for_are_measured_and_shown(files, capsys):
    assert main(["release", *_words(files, tables=["job,day", "age"])]) == 0
    said = capsys.readouterr().out
    assert "replace_one, 4000 records\n" in said
    titles = [line.split("  ")[0] for line in said.splitlines() if "standard error" in line]
    assert titles == ["job, day", "age"]
    assert "cook, 2020Q2" in said
    assert "unknown" not in said


def test_noise_and_guarantee_are_those_of_a_person(files, capsys):
    """Of 4 rows a person 2 are kept; one more would be answered with a half more noise."""
    errors = []
    for most in (1, 2, 3):
        words = _words(files, unit="who", max_rows=most, num_records=most * PEOPLE, delta=1e-6)
        assert main(["release", *words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["relation"] == "add_or_remove_one"
        assert told["epsilon"] == pytest.approx(1, abs=2e-3)
        errors.append(told["tables"][0]["stddev"][0] * told["num_records"])
    np.testing.assert_allclose(np.array(errors) / errors[0], [1, 2, 3], rtol=0.01)


def test_without_a_seed_every_run_draws_anew(files, capsys):
    words = _words(files, seed=None, tables=["job"])
    told = []
    for _ in range(2):
        assert main(["release", *words, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)["tables"])
    assert told[0] != told[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "epsilon must be > 0, got 0.0"),
        ({"epsilon": 1000}, "--epsilon must be at most 500, got 1000"),
        ({"tables": ["job, wage"]}, "wage"),
        ({"rows": 0}, "rows must be >= 1, got 0"),
        ({"output": "nowhere/rows.csv"}, "--output must lie in a folder that exists"),
        ({"unit": "who"}, "--unit and --max-rows must be given together"),
        ({"unit": "whose", "max_rows": 1}, "lacks column 'whose'"),
        ({"unit": "who", "max_rows": 2}, "--num-records is required"),
        ({"unit": "who", "max_rows": 2, "num_records": 9, "relation": "replace_one"}, "relation"),
        ({"relation": "add_or_remove_one"}, "--num-records is required"),
        ({"num_records": 3}, "num_records must be 4000"),
    ],
)
def test_invalid_values_give_one_line_and_spend_nothing(
    files, capsys, monkeypatch, changes, message
):
    ran = []
    monkeypatch.setattr(dpjax.api._release, "solve", lambda *_, **__: ran.append(1))
    assert main(["release", *_words(files, **changes)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not ran


def test_a_name_that_no_table_can_show_is_told_first(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dpjax.api._release, "solve", None)
    schema = tmp_path / "schema.json"
    schema.write_text(Domain.from_columns({"count": Categorical(["1"], "other")}).to_json())
    (tmp_path / "data.csv").write_text("count\n1\n2\n")
    words = [str(tmp_path / "data.csv"), "--schema", str(schema), "--epsilon", "1"]
    assert main(["release", *words]) == 2
    assert "columns named ['count'] cannot be shown" in capsys.readouterr().err


def test_cells_of_any_kind_become_text():
    days = np.array(["2020-05-01", "NaT"], "datetime64[D]")
    assert _release_command._plain(days) == ["2020-05-01", None]
    assert _release_command._plain(np.array([1.5, math.nan])) == [1.5, None]
    assert _release_command._plain(np.array([1, None], object)) == [1, None]
