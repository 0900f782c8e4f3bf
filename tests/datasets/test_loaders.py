"""Loaders of files that do not ship: on the originals where present, else on small look-alikes."""

import csv
import gzip
import types
import zipfile

import jax
import numpy as np
import pytest

import benchmarks.datasets._credit as credit_module
import benchmarks.datasets._download as download
import benchmarks.datasets._folktables as folk_module
import benchmarks.datasets._heart as heart_module
import benchmarks.datasets._parkinsons as park_module
import dpjax
import dpjax.datasets
from benchmarks import fair_further
from benchmarks.datasets import (
    _peers_columns,
    credit_default,
    folktables,
    heart_indicators,
    parkinsons,
)
from dpjax.problems import RateConstrained
from dpjax.solvers import RateConstrainedSGDA

CREDIT = ("ID", *credit_module._OFFICIAL, "default payment next month")
CREDIT_ROWS = [
    [1, 20000, 2, 2, 1, 24, 2, 2, -1, -1, -2, -2, *[3913, 3102, 689, 0, 0, -10], *[0] * 6, 1],
    [2, 1e6, 1, 9, 3, 79, 8, 0, 0, 0, 0, 0, *[5e6, 0, 0, 0, 0, -5e6], *[3e6] * 6, 0],
]
PARKINSONS = (
    "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,Jitter(%),Jitter(Abs),Jitter:RAP,"
    "Jitter:PPQ5,Jitter:DDP,Shimmer,Shimmer(dB),Shimmer:APQ3,Shimmer:APQ5,Shimmer:APQ11,"
    "Shimmer:DDA,NHR,HNR,RPDE,DFA,PPE"
)
FOLK = ("RT", "PWGTP", "RAC1P", "ESR", *(block.column for block in folk_module._BLOCKS))
HEART = ("HeartDiseaseorAttack", "Sex", *(block.column for block in heart_module._BLOCKS))


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def check(d, n):
    p = len(d.feature_names)
    assert (d.x.shape, d.y.shape, d.group.shape) == ((n, p), (n,), (n,))
    assert (d.x.dtype, d.y.dtype, d.group.dtype) == (np.float32, np.int32, np.int32)
    assert p <= 200
    assert len(set(d.feature_names)) == p
    assert np.isfinite(d.x).all()
    norms = np.sqrt((d.x.astype(np.float64) ** 2).sum(axis=1))
    assert norms.max() <= d.norm_bound * (1 + 1e-12)
    assert set(np.unique(d.y)) <= set(range(len(d.label_names)))
    assert set(np.unique(d.group)) <= set(range(len(d.group_names)))
    assert d.source
    assert d.licence


def check_rows_stand_alone(features, table, x):
    for i in range(0, len(x), max(1, len(x) // 20)):
        alone, _ = features({name: column[i : i + 1] for name, column in table.items()})
        np.testing.assert_array_equal(alone[0], x[i])


@pytest.mark.slow
def test_credit_original(original):
    path = original("credit_default.csv.gz")
    d = credit_default(path)
    check(d, 30000)
    assert d.y.sum() == 6636
    assert d.group.sum() == 11888
    assert d.private_preprocessing
    assert not any("SEX" in name for name in d.feature_names)
    check_rows_stand_alone(credit_module._features, credit_module._read_table(path), d.x)


def test_credit_formats_agree(tmp_path):
    named = write(tmp_path / "named.csv", CREDIT, CREDIT_ROWS)
    want = credit_default(named)
    check(want, 2)
    assert want.group.tolist() == [0, 1]
    assert want.y.tolist() == [1, 0]
    column = dict(zip(want.feature_names, want.x.T, strict=True))
    assert column["EDUCATION=2"].tolist() == [1, 0]
    assert sum(column[f"EDUCATION={k}"][1] for k in range(7)) == 0  # 9 is not a code
    assert column["PAY_0:[2,3)"].tolist() == [1, 0]
    assert column["PAY_0:[4,inf)"].tolist() == [0, 1]
    assert (column["BILL_AMT1"][1], column["BILL_AMT6"][1], column["PAY_AMT1"][1]) == (1, -1, 1)
    assert column["PAY_AMT1"][0] == -1

    coded = ("", *(f"X{i}" for i in range(1, 24)), "Y")
    dots = (*CREDIT[:-1], "default.payment.next.month")
    kaggle = tuple("PAY_1" if name == "PAY_0" else name for name in dots)
    onehot = (
        *(name for name in CREDIT[:-1] if name not in ("EDUCATION", "MARRIAGE")),
        "default-payment-next-month",
        *(f"EDUCATION_{k}" for k in range(7)),
        *(f"MARRIAGE_{k}" for k in range(4)),
    )
    onehot_rows = []
    for row in CREDIT_ROWS:
        plain = [v for name, v in zip(CREDIT, row, strict=True) if name not in onehot[-11:]]
        plain = [*row[:2], row[2] - 1, *row[5:]]  # SEX 0 male, 1 female in this format
        hot = [int(row[3] == k) for k in range(7)] + [int(row[4] == k) for k in range(4)]
        onehot_rows.append([*plain, *hot])
    paths = [
        write(tmp_path / "coded.csv", coded, CREDIT_ROWS),
        write(tmp_path / "both.csv", coded, [CREDIT, *CREDIT_ROWS]),
        write(tmp_path / "kaggle.csv", kaggle, CREDIT_ROWS),
        write(tmp_path / "onehot.csv", onehot, onehot_rows),
    ]
    with gzip.open(tmp_path / "named.csv.gz", "wb") as file:
        file.write(named.read_bytes())
    with zipfile.ZipFile(tmp_path / "named.zip", "w") as archive:
        archive.write(named, "folder/named.csv")
    for path in (*paths, tmp_path / "named.csv.gz", tmp_path / "named.zip"):
        got = credit_default(path)
        np.testing.assert_array_equal(got.x, want.x, err_msg=str(path))
        np.testing.assert_array_equal(got.y, want.y)
        np.testing.assert_array_equal(got.group, want.group)


def test_credit_xls_needs_xlrd(tmp_path, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(credit_module.importlib, "import_module", absent)
    (tmp_path / "default.xls").write_bytes(b"xls")
    with zipfile.ZipFile(tmp_path / "uci.zip", "w") as archive:
        archive.writestr("default of credit card clients.xls", b"xls")
    for path in (tmp_path / "default.xls", tmp_path / "uci.zip", None):
        with pytest.raises(ImportError, match=r"xlrd.*pass path="):
            credit_default(path)


def test_credit_xls_through_xlrd(tmp_path, monkeypatch):
    lines = [["", *(f"X{i}" for i in range(1, 24)), "Y"], list(CREDIT), *CREDIT_ROWS]
    sheet = types.SimpleNamespace(nrows=len(lines), row_values=lines.__getitem__)
    book = types.SimpleNamespace(sheet_by_index=lambda i: sheet)
    fake = types.SimpleNamespace(open_workbook=lambda file_contents: book)
    monkeypatch.setattr(credit_module.importlib, "import_module", lambda name: fake)
    with zipfile.ZipFile(tmp_path / "uci.zip", "w") as archive:
        archive.writestr("default of credit card clients.xls", b"xls")
    d = credit_default(tmp_path / "uci.zip")
    want = credit_default(write(tmp_path / "named.csv", CREDIT, CREDIT_ROWS))
    np.testing.assert_array_equal(d.x, want.x)
    assert d.group.tolist() == [0, 1]


def test_credit_bad_files(tmp_path):
    names = [("age" if name == "AGE" else name) for name in CREDIT]
    with pytest.raises(ValueError, match=r"must have the columns \['AGE'\]"):
        credit_default(write(tmp_path / "a.csv", names, CREDIT_ROWS))
    bad = [row.copy() for row in CREDIT_ROWS]
    bad[1][2] = 3
    with pytest.raises(ValueError, match=r"SEX must be one of \[1, 2\]: 1 of "):
        credit_default(write(tmp_path / "b.csv", CREDIT, bad))
    with pytest.raises(ValueError, match="record 2 must have 25 fields, got 4"):
        credit_default(write(tmp_path / "c.csv", CREDIT, [CREDIT_ROWS[0], CREDIT_ROWS[1][:4]]))
    bad[1][1] = "much"
    with pytest.raises(ValueError, match=r"column 'LIMIT_BAL' must hold numbers, got text"):
        credit_default(write(tmp_path / "d.csv", CREDIT, bad))
    (tmp_path / "e.csv").write_bytes(b"")
    with pytest.raises(ValueError, match="got an empty file"):
        credit_default(tmp_path / "e.csv")
    with pytest.raises(ValueError, match="must have sha256 aa"):
        credit_default(tmp_path / "d.csv", sha256="aa")


def test_parkinsons_original(original):
    path = original("parkinsons_updrs.csv.gz")
    d = parkinsons(path)
    check(d, 5875)
    assert d.y.sum() == 2934
    assert not d.private_preprocessing
    assert "not private" in d.note
    assert len(set(d.subject.tolist())) == 42
    women = {s for s, g in zip(d.subject.tolist(), d.group.tolist(), strict=True) if g == 0}
    assert len(women) == 14
    train, _ = d.split()
    assert len(train.subject) == len(train)
    columns = [block.column for block in park_module._BLOCKS]
    table = park_module.read_columns(path, columns)
    check_rows_stand_alone(park_module._features, table, d.x)


def test_parkinsons_official_zip_and_threshold(tmp_path):
    rows = ["1,72,0,5.6,28.1,34.3" + ",0.02" * 16, "2,58,1,0,5,20" + "," * 16]
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("parkinsons_updrs.data", "\n".join([PARKINSONS, *rows]) + "\n")
        archive.writestr("parkinsons_updrs.names", "words")
    d = parkinsons(tmp_path / "p.zip", threshold=10.0)
    check(d, 2)
    assert d.private_preprocessing
    assert d.y.tolist() == [1, 1]
    assert d.group.tolist() == [1, 0]
    assert parkinsons(tmp_path / "p.zip").y.tolist() == [1, 0]
    with pytest.raises(ValueError, match="threshold must be finite, got nan"):
        parkinsons(tmp_path / "p.zip", threshold=float("nan"))
    with zipfile.ZipFile(tmp_path / "q.zip", "w") as archive:
        archive.writestr("readme.txt", "words")
    with pytest.raises(ValueError, match=r"must hold one file ending in .*readme\.txt"):
        parkinsons(tmp_path / "q.zip")


def folk_rows():
    usual = {name: 1 for name in FOLK} | {"RT": "P", "AGEP": 40, "PWGTP": 5, "RELP": 0}
    child = {"AGEP": 3, "ESR": "", "SCHL": "", "RAC1P": 9, "SEX": 2}
    records = [usual, usual | child, usual | {"AGEP": 90}, usual | {"ESR": 6, "RAC1P": 6}]
    return [[record[name] for name in FOLK] for record in records]


def test_folktables_official_zip_and_filter(tmp_path):
    path = write(tmp_path / "psam_p01.csv", FOLK, folk_rows())
    with zipfile.ZipFile(tmp_path / "csv_pal.zip", "w") as archive:
        archive.write(path, "psam_p01.csv")
        archive.writestr("ACS2018_PUMS_README.pdf", b"words")
    d = folktables(path=tmp_path / "csv_pal.zip")
    check(d, 4)
    assert d.y.tolist() == [1, 0, 1, 0]
    assert d.group.tolist() == [0, 8, 0, 5]
    assert len(d.group_names) == 9
    assert not any("RAC1P" in name or "ESR" in name for name in d.feature_names)
    column = dict(zip(d.feature_names, d.x.T, strict=True))
    assert column["SEX=2"].tolist() == [0, 1, 0, 0]
    assert sum(column[f"SCHL={k}"][1] for k in range(1, 25)) == 0
    kept = folktables(path=path, task="ACSEmploymentFiltered")
    np.testing.assert_array_equal(kept.x, d.x[[0, 3]])
    assert kept.group.tolist() == [0, 5]


@pytest.mark.slow
def test_eighteen_constraints_of_an_official_file(tmp_path):
    """ACSEmployment, nine groups: parity of each with the rest, for both classes."""
    rng = np.random.default_rng(0)
    usual = dict(zip(FOLK, folk_rows()[0], strict=True))
    people = [
        usual | {"RAC1P": rng.integers(1, 10), "AGEP": rng.integers(0, 90), "SEX": 1 + i % 2}
        for i in range(400)
    ]
    for one in people:
        if one["RAC1P"] == 3 and rng.random() < 0.6:
            one["AGEP"] %= 16
        # labels that no model gets right, or weights grow until no gradient is left
        one["ESR"] = 1 if (18 <= one["AGEP"] < 65) ^ (rng.random() < 0.2) else 6
    path = write(tmp_path / "psam_p01.csv", FOLK, [[p[name] for name in FOLK] for p in people])
    with zipfile.ZipFile(tmp_path / "csv_pal.zip", "w") as archive:
        archive.write(path, "psam_p01.csv")
    found = fair_further.cases(tmp_path, 100)["employment"]
    dataset, constraint = found[0], found[1]
    assert set(np.unique(dataset.group)) == set(range(9))
    constraints = constraint(0.05)
    assert constraints.num_constraints == 18
    gaps = []
    for slack in (1.0, 0.02):
        problem = RateConstrained.linear(dataset.num_features, 2, constraint(slack))
        options = {
            "steps": 600,
            "learning_rate": 0.1,
            "dual_learning_rate": 0.1,
            "swing_bound": None,
        }
        budget = dpjax.Budget(float("inf"), 1e-5)
        solver = RateConstrainedSGDA.for_budget(problem, len(dataset), budget, **options)
        data = dataset.as_dict()
        params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
        gaps.append(float(problem.disparity(params, data)))
    assert gaps[0] > 0.2
    assert gaps[1] < 0.75 * gaps[0]


@pytest.mark.slow
def test_heart_is_a_case_where_its_file_lies(tmp_path):
    rows = [["1.0"] * len(HEART), ["0.0"] * len(HEART)]
    write(tmp_path / fair_further.HEART, HEART, rows)
    found = fair_further.cases(tmp_path, 100)
    dataset, constraint, *_ = found["heart"]
    assert len(dataset) == 2
    assert constraint(0.1).num_constraints == 1
    assert "employment" not in found


@pytest.mark.slow
def test_peers_columns_are_as_many_as_published(original):
    train, test = _peers_columns.adult_102()
    assert (len(train), len(test), train.num_features) == (33_916, 11_306, 102)
    assert not train.private_preprocessing
    np.testing.assert_allclose(train.x[:, :6].mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(train.x[:, 6:].sum(axis=1), 7)
    train, test = _peers_columns.credit_85(original("credit_default.csv.gz"))
    assert (len(train), len(test), train.num_features) == (22_500, 7_500, 85)
    train, test = _peers_columns.parkinsons_19(original("parkinsons_updrs.csv.gz"))
    assert (len(train), len(test), train.num_features) == (4_406, 1_469, 19)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("state", "XX"),
        ("year", 2019),
        ("year", 2013),
        ("horizon", "3-Year"),
        ("survey", "household"),
        ("task", "ACSIncome"),
    ],
)
def test_folktables_arguments(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be .*{value}"):
        folktables(**{argument: value})


def test_official_addresses(monkeypatch):
    asked = []

    def fetch(url, filename, *, sha256=None):
        asked.append((url, filename, sha256))
        raise ConnectionError("offline")

    monkeypatch.setattr(download, "fetch", fetch)
    monkeypatch.setattr(credit_module, "_xlrd", lambda: None)
    for loader in (credit_default, parkinsons, folktables):
        with pytest.raises(ConnectionError, match="offline"):
            loader(sha256="ab")
    pums = "https://www2.census.gov/programs-surveys/acs/data/pums/2018/1-Year/csv_pal.zip"
    assert asked[2] == (pums, "acs_2018_1-Year_csv_pal.zip", "ab")
    assert all(
        url.startswith("https://archive.ics.uci.edu/static/public/") for url, *_ in asked[:2]
    )


def test_heart_official_csv(tmp_path):
    first = {name: "1.0" for name in HEART} | {"BMI": "40.0", "Sex": "0.0", "Diabetes": "2.0"}
    second = {name: "1.0" for name in HEART} | {"BMI": "18.4", "HeartDiseaseorAttack": "0.0"}
    rows = [[record[name] for name in HEART] for record in (first, second)]
    d = heart_indicators(write(tmp_path / "heart.csv", HEART, rows))
    check(d, 2)
    assert d.y.tolist() == [1, 0]
    assert d.group.tolist() == [0, 1]
    column = dict(zip(d.feature_names, d.x.T, strict=True))
    assert column["BMI:[40,inf)"].tolist() == [1, 0]
    assert column["BMI:[0,18.5)"].tolist() == [0, 1]
    assert column["Diabetes=2"].tolist() == [1, 0]
    assert not any("Sex" in name for name in d.feature_names)


def test_heart_needs_a_path():
    with pytest.raises(
        FileNotFoundError, match=r"sign in at https://www\.kaggle\.com.* pass path="
    ):
        heart_indicators()


def test_the_old_names_say_where_they_are():
    for loader in (credit_default, folktables, heart_indicators, parkinsons):
        with pytest.raises(AttributeError, match=f"'{loader.__name__}': .*benchmarks/datasets"):
            getattr(dpjax.datasets, loader.__name__)
    with pytest.raises(AttributeError, match=r"has no attribute 'mnist'$"):
        dpjax.datasets.mnist  # noqa: B018
