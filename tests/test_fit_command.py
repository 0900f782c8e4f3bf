"""`python -m dpjax fit`: features within their bounds, what it prints and what it refuses."""

import csv
import datetime
import json
import re

import numpy as np
import pytest

import dpjax
from dpjax.__main__ import main
from dpjax._csv_files import MISSING, parser, read_csv
from dpjax.api._table_model import TableModel
from dpjax.problems import LinearModel, RateConstrained
from dpjax.queries import Categorical, Date, Domain, Numeric

DOMAIN = Domain.from_columns(
    {
        "age": Numeric(20, 60, missing=True),
        "rooms": Numeric(0, 4, integer=True),
        "job": Categorical(["clerk", "cook"], "other"),
        "sex": Categorical(["F", "M"]),
        "day": Date("2020-01-01", "2020-12-31", missing=True),
        "rich": Categorical([0, 1]),
    }
)
ROWS = [
    ["age", "unused", "rooms", "job", "sex", "day", "rich"],
    ["40", "x", "4", "cook", "F", "2020-01-01", "1"],
    ["?", "y", "-9", "baker", "M", "", "0"],
    ["99.5", "z", "2", "clerk", "M", "2020-12-31", "0"],
]


def _written(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_a_file_becomes_columns_of_the_schema(tmp_path):
    table = read_csv(_written(tmp_path / "a.csv", ROWS), DOMAIN, ["?", ""])
    assert list(table) == list(DOMAIN.attributes)
    assert table["age"].tolist() == [40.0, None, 99.5]
    assert table["rooms"].tolist() == [4, -9, 2]
    assert table["rich"].tolist() == ["1", "0", "0"]
    assert table["day"].tolist() == [datetime.date(2020, 1, 1), None, datetime.date(2020, 12, 31)]


def test_features_lie_in_their_bounds(tmp_path):
    table = read_csv(_written(tmp_path / "a.csv", ROWS), DOMAIN, ["?", ""])
    model = TableModel(DOMAIN, "rich")
    got = model.features(table) * 5**0.5
    names = ("age", "age is missing", "rooms", "job = clerk", "job = cook", "job = other")
    assert model.names == (*names, "sex = M", "day", "day is missing")
    want = [
        [0, 0, 1, 0, 1, 0, -1, -1, 0],
        [0, 1, -1, 0, 0, 1, 1, 0, 1],
        [1, 0, 0, 1, 0, 0, 1, 1, 0],
    ]
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.linalg.norm(got / 5**0.5, axis=1).max() <= 1 + 1e-6


def test_an_input_on_a_log_scale_is_its_logarithm_and_a_target_is_not():
    pay = Numeric(1, 10_000, scale="log", missing=True)
    table = {"pay": [0.5, 100.0, None, 1e6], "rich": [0, 0, 1, 1]}
    model = TableModel(Domain.from_columns({"pay": pay, "rich": Categorical([0, 1])}), "rich")
    want = [[-1, 0], [0, 0], [0, 1], [1, 0]]
    np.testing.assert_allclose(model.features(table), want, atol=1e-6)
    told = TableModel(model.domain, "pay").records(table)["y"]
    np.testing.assert_allclose(told, [-1, 99 / 9999 * 2 - 1, np.nan, 1], atol=1e-6)


def test_the_target_decides_the_problem():
    two = TableModel(DOMAIN, "rich").problem
    assert isinstance(two, LinearModel)
    assert two.link == "logistic"
    assert isinstance(TableModel(DOMAIN, "job").problem, RateConstrained)
    number = TableModel(DOMAIN, "rooms").problem
    assert isinstance(number, LinearModel)
    assert number.link == "huber"


def test_records_of_a_regression(tmp_path):
    table = read_csv(_written(tmp_path / "a.csv", ROWS), DOMAIN, ["?", ""])
    assert TableModel(DOMAIN, "rooms").records(table)["y"].tolist() == [1.0, -1.0, 0.0]
    # a row without a target counts, and teaches nothing
    ages = TableModel(DOMAIN, "age").records(table)
    assert ages["x"].shape[0] == 3
    assert np.isnan(ages["y"]).sum() == 1


def test_days_are_iso_dates(tmp_path):
    domain = Domain.from_columns({"day": Date("2020-01-01", "2020-12-31")})
    good = ["2020-01-31", "20200131", "2020-01-31 23:59", "2020-01-31T00:00:00"]
    table = read_csv(_written(tmp_path / "a.csv", [["day"], *([d] for d in good)]), domain, [])
    assert set(table["day"]) == {datetime.date(2020, 1, 31)}
    bad = ["2020", "5", "31/01/2020", "2020-01-31T10:00+02:00", "2020-13-01"]
    path = _written(tmp_path / "b.csv", [["day"], *([d] for d in bad)])
    with pytest.raises(ValueError, match="must hold days such as 2020-01-31: 5 of 5 rows do not"):
        read_csv(path, domain, [])


def _schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(DOMAIN.to_json())
    return str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--target": "wealth"}, "target must be one of"),
        ({"--epsilon": "-1"}, "epsilon must be > 0, got -1.0"),
        ({"--method": "magic"}, "method must be one of"),
        ({"--relation": "add_or_remove_one"}, "--num-records is required"),
        ({"--no-missing": "--json"}, "column 'age' must hold numbers: 1 of 3 rows do not"),
        ({"--schema": "nowhere.json"}, "nowhere.json"),
        ({"--num-records": "0"}, "--num-records must be >= 1, got 0"),
        ({"--seed": "9" * 20}, "--seed must lie in [0, 2^63)"),
        ({"--output": "."}, "--output must be a file, got the folder ."),
    ],
)
def test_invalid_values_give_one_line(tmp_path, capsys, change, message):
    given = {"--schema": _schema(tmp_path), "--target": "rich", "--epsilon": "1"} | change
    words = [str(_written(tmp_path / "a.csv", ROWS)), *(w for pair in given.items() for w in pair)]
    assert main(["fit", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_texts_of_missing_values_come_beside_the_usual_ones():
    words = ["a.csv", "--schema", "b.json", "--epsilon", "1"]

    def read(*more):
        return parser("fit", "").parse_args([*words, *more]).missing

    assert read() == list(MISSING)
    assert read("--missing", "x", "--missing", "y") == [*MISSING, "x", "y"]
    assert read("--no-missing", "--missing", "x") == ["x"]


def test_rows_of_another_length_are_refused(tmp_path, capsys):
    path = _written(tmp_path / "a.csv", [*ROWS, ["40"]])
    words = ["--schema", _schema(tmp_path), "--target", "rich", "--epsilon", "1"]
    assert main(["fit", str(path), *words]) == 2
    assert "rows must have 7 fields, as the header, got 1 others" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age;job\n44;cook\n", "write commas between columns for ';'"),
        ("age\tjob\n44\tcook\n", "write commas between columns for '\\t'"),
        ("age,job,age\n44,cook,45\n", "has 2 columns 'age': rename all but one"),
    ],
)
def test_what_is_wrong_with_names_of_columns_is_told(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    domain = Domain.from_columns({"age": Numeric(0, 99, bins=3), "job": Categorical(["cook"])})
    with pytest.raises(ValueError, match=re.escape(message)):
        read_csv(path, domain, [""])


@pytest.mark.slow
def test_a_fit_learns_reports_and_saves(tmp_path, capsys):
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 60, 4_000)
    rows = [
        [f"{a:.1f}", "", "2", "cook", "FM"[i % 2], "2020-05-01", str(int(a > 40))]
        for i, a in enumerate(age)
    ]
    train = _written(tmp_path / "train.csv", [ROWS[0], *rows[:3_000]])
    test = _written(tmp_path / "test.csv", [ROWS[0], *rows[3_000:]])
    words = [str(train), "--schema", _schema(tmp_path), "--target", "rich", "--epsilon", "2"]
    more = ["--test", str(test), "--output", str(tmp_path / "model"), "--seed", "0", "--json"]
    assert main(["fit", *words, *more]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epsilon"] <= 2
    assert result["delta"] == 3_000**-1.5
    assert result["num_records"] == 3_000
    assert result["classes"] == ["0", "1"]
    assert result["test"]["rows"] == 1_000
    assert result["test"]["error"] < 0.1
    assert result["coefficients"]["age"] > abs(result["coefficients"]["sex = M"])
    loaded = dpjax.load(tmp_path / "model")
    assert loaded.method == result["method"]
    guesses = loaded.predict(read_csv(test, DOMAIN, list(MISSING)))
    assert main(["predict", str(tmp_path / "model"), str(test)]) == 0
    told = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert told[0] == [*ROWS[0], "predicted rich"]
    wrong = np.mean([row[-1] != row[-2] for row in told[1:]])
    assert wrong == pytest.approx(result["test"]["error"], abs=1e-12)
    assert [str(guess) for guess in guesses] == [row[-1] for row in told[1:]]
    assert main(["fit", *words, "--test", str(test), "--seed", "0"]) == 0
    shown = capsys.readouterr().out
    assert "replace_one, 3000 records" in shown
    assert "why not" in shown
    assert shown.splitlines()[3].endswith("numbers from -1 to 1, for 1")
    assert shown.splitlines()[4].startswith("age ")


@pytest.mark.parametrize(
    ("target", "feature", "weight", "want"),
    [
        ("rich", "rooms", 1.0, ["1", "0", "0"]),
        ("rooms", "sex = M", 0.5 * 5**0.5, ["1.0", "3.0", "3.0"]),
        ("day", "age", 5**0.5, ["2020-07-01", "2020-07-01", "2020-12-31"]),
    ],
)
def test_a_prediction_is_in_units_of_the_target(tmp_path, target, feature, weight, want):
    model = TableModel(DOMAIN, target)
    table = read_csv(_written(tmp_path / "a.csv", ROWS), DOMAIN.project(model.inputs), ["?", ""])
    params = np.array([weight * (name == feature) for name in (*model.names, "1")], np.float32)
    got = model.predict(params, table)
    assert [str(np.round(v, 5)) if target == "rooms" else str(v) for v in got] == want


def test_a_prediction_needs_a_model_of_fit(tmp_path, capsys):
    data = str(_written(tmp_path / "a.csv", ROWS))
    assert main(["predict", data, data]) == 2
    assert "must be a file of Fitted.save" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "absent"), data]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_of_other_bytes_shows_none_of_them(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes(b"age,job\n44,caf\xe9\n")
    with pytest.raises(
        ValueError, match="must be a table of comma-separated text in UTF-8"
    ) as error:
        read_csv(path, DOMAIN, [""])
    assert "position" not in str(error.value)
    assert error.value.__suppress_context__
