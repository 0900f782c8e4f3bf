"""The synthesizer: what it measures, gives back and refuses."""

import copy
import math
import pickle
from unittest import mock

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dpjax
from dpjax.queries import Categorical, Concat, Dense, Domain, Marginals, Numeric
from dpjax.sklearn import PrivateSynthesizer, _private_synthesizer
from dpjax.sklearn._public import key_for
from dpjax.solvers import GaussianFit

DOMAIN = Domain({"sex": ["F", "M"], "age": 4, "income": ["low", "high"]})


class Frame:
    """As much of a data frame as pandas and polars have in common."""

    def __init__(self, columns):
        self._columns = dict(columns)
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name]


@pytest.fixture
def codes(rng):
    sex = rng.integers(0, 2, 5000)
    age = rng.integers(0, 4, 5000)
    return np.stack([sex, age, (sex + age > rng.integers(1, 4, 5000)).astype(int)], axis=1)


@pytest.fixture
def model():
    return PrivateSynthesizer(DOMAIN, workload="all_2way", random_state=0)


@pytest.mark.slow
def test_answers_are_near_the_truth_within_the_budget(codes, model):
    model.fit(codes)
    assert 0.9 < model.epsilon_ <= 1.0
    assert model.epsilon_ == model.guarantee_.epsilon(model.delta_)
    assert model.guarantee_.relation.name == "REPLACE_ONE"
    assert -0.02 < model.score(codes) < 0
    true = np.asarray(Marginals.all_kway(DOMAIN, 2).answers_of_records(codes))
    np.testing.assert_allclose(model.answers(), true, atol=0.02)
    assert -model.score(codes) == pytest.approx(float(np.max(np.abs(model.answers() - true))))


def test_other_workloads_are_answered_by_the_learned_distribution(codes, model):
    model.fit(codes)
    cliques = [("age",), ("sex", "income")]
    true = Marginals(DOMAIN, cliques).answers_of_records(codes)
    np.testing.assert_allclose(model.answers(cliques), true, atol=0.02)
    one = Marginals.all_kway(DOMAIN, 1)
    np.testing.assert_array_equal(model.answers(one), model.answers("all_1way"))


def test_the_guarantee_is_that_of_release(codes, key):
    workload = Marginals.all_kway(DOMAIN, 2)
    model = PrivateSynthesizer(DOMAIN, delta=1e-6, workload=workload).fit(codes)
    released = dpjax.release(workload, codes, dpjax.Budget(1.0, 1e-6), key=key)
    assert model.guarantee_ == released.guarantee


@pytest.mark.slow
def test_samples_come_in_the_container_that_was_fitted(codes, model):
    systematic = model.fit(codes).sample(5000, systematic=True, random_state=1)
    assert (systematic.shape, systematic.dtype) == ((5000, 3), np.int32)
    true = Marginals.all_kway(DOMAIN, 2).answers_of_records(codes)
    answers = Marginals.all_kway(DOMAIN, 2).answers_of_records(systematic)
    np.testing.assert_allclose(answers, true, atol=0.02)
    assert not hasattr(model, "feature_names_in_")

    columns = DOMAIN.decode(codes)
    sample = model.fit({"other": np.zeros(5000), **columns}).sample(20)
    assert type(sample) is dict
    assert {name: set(column) <= set(columns[name]) for name, column in sample.items()} == {
        "sex": True,
        "age": True,
        "income": True,
    }
    assert model.feature_names_in_.tolist() == ["sex", "age", "income"]

    frame = model.fit(Frame(columns)).sample(20)
    assert type(frame) is Frame
    assert frame.columns == ["sex", "age", "income"]


def test_raw_columns_come_back_as_raw_values():
    domain = {"age": Numeric(0, 99, bins=4, integer=True), "sex": Categorical(["F", "M"], "other")}
    table = {"age": np.arange(2000) % 120, "sex": ["F", "M", "F", "X"] * 500}
    model = PrivateSynthesizer(domain, workload="all_1way", method="histogram", random_state=0)
    sample = model.fit(table).sample(400, random_state=1)
    assert set(sample["sex"].tolist()) == {"F", "M", "other"}
    assert len(np.unique(sample["age"])) > 60
    again = model.sample(400, random_state=1)
    np.testing.assert_array_equal(sample["age"], again["age"])


@pytest.mark.slow
def test_samples_repeat_by_seed_only_and_default_to_the_public_number(codes, model):
    model.set_params(num_records=4000).fit(codes[:4000])
    assert len(model.sample()) == 4000
    np.testing.assert_array_equal(
        model.sample(50, random_state=1), model.sample(50, random_state=1)
    )
    assert np.any(model.sample(50) != model.sample(50))


@pytest.mark.slow
def test_under_add_or_remove_the_number_is_an_argument(codes):
    model = PrivateSynthesizer(DOMAIN, workload="all_1way", relation="add_or_remove_one")
    with pytest.raises(ValueError, match="num_records is required"):
        model.fit(codes)
    model.set_params(num_records=4000).fit(codes)  # near it: no bound
    assert model.guarantee_.relation.name == "ADD_OR_REMOVE_ONE"
    assert 0.9 < model.epsilon_ <= 1.0
    assert len(model.sample()) == 4000


def test_a_seed_gives_other_noise_for_other_records(codes, model):
    again = clone(model).fit(codes).answers()
    np.testing.assert_array_equal(again, model.fit(codes).answers())
    codes[0] = 1 - codes[0] % 2
    other = model.fit(codes).answers()
    assert np.mean(np.abs(other - again) > 1 / 5000) > 0.5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"domain": None}, "domain is required"),
        ({"domain": {"sex": 2, "age": 4}}, r"shape \[n, 2\]"),
        ({"domain": {"sex": 2, "age": 3, "income": 2}}, "column 'age' must hold"),
        ({"workload": "3way"}, "workload must be like 'all_3way'"),
        ({"workload": "all_4way"}, "k must be <= 3 attributes"),
        ({"workload": Marginals.all_kway(Domain({"sex": 2}), 1)}, "workload must be over the dom"),
        ({"epsilon": -1.0}, "epsilon must be > 0"),
        ({"num_records": 0}, "num_records must be >= 1"),
        ({"method": "other"}, "method must be one of"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(codes, model, parameters, message):
    with pytest.raises(ValueError, match=message):
        model.set_params(**parameters).fit(codes)


@pytest.mark.slow
def test_methods_and_their_options_pass_through(codes, model):
    model.set_params(method="mwem", method_options={"steps": 3}).fit(codes)
    assert model.release_.method == "mwem"
    assert model.epsilon_ <= 1.0
    name = DOMAIN.attributes[0]
    model.set_params(method="auto", method_options={"target": name}, workload="all_2way").fit(codes)
    assert f"tables with {name!r} have 8 times the precision" in model.release_.reason


def test_no_noise_is_said_to_be_no_privacy(codes, model):
    model.set_params(epsilon=math.inf).fit(codes)
    assert model.epsilon_ == math.inf
    assert model.score(codes) == pytest.approx(0, abs=1e-5)


def test_fitted_models_survive_pickling(codes, model):
    with pytest.raises(NotFittedError):
        model.sample(3)
    model.fit(DOMAIN.decode(codes))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.answers(), model.answers())
    left, right = again.sample(9, random_state=2), model.sample(9, random_state=2)
    assert {n: c.tolist() for n, c in left.items()} == {n: c.tolist() for n, c in right.items()}
    assert again.guarantee_ == model.guarantee_


WIDE = Domain({"a": 30, "b": 40})
ENTRIES = np.random.default_rng(0).integers(0, 2, (6, 1200)).astype(np.float32)
OTHERS = ENTRIES.copy()
OTHERS[:, 600] = 1 - OTHERS[:, 600]


def noise_of(entries, records):
    """What is released less the truth, for a workload that ends in these queries."""
    workload = Concat([Marginals(WIDE, (("a",),)), Dense(entries)])
    model = PrivateSynthesizer(
        WIDE, workload=workload, method="gaussian_fit", random_state=7, num_records=len(records)
    )
    stopped = mock.patch.object(_private_synthesizer, "release", side_effect=StopIteration)
    with stopped as called, pytest.raises(StopIteration):
        model.fit(records)
    problem = dpjax.problems.QueryRelease(workload)
    solver = GaussianFit.for_budget(problem, len(records), dpjax.Budget(1.0, 1e-6))
    start = solver.init(problem, key=called.call_args.kwargs["key"])
    state, _ = solver.step(problem, records, np.ones(len(records), bool), start)
    return np.asarray(state.measured - workload.answers_of_records(records), float)


def test_workloads_that_differ_in_one_column_draw_other_noise(rng):
    """With one noise, what is released would differ by the exact counts of that cell."""
    records = np.stack([rng.integers(0, 30, 200), rng.integers(0, 40, 200)], axis=1)
    one, again, other = (noise_of(e, records) for e in (ENTRIES, ENTRIES.copy(), OTHERS))
    np.testing.assert_allclose(one, again, atol=1e-6)
    assert np.min(np.abs(one - other)) > 1e-6
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.8


@pytest.mark.parametrize(
    "differs",
    [
        {"method_options": {"allocation": np.where(np.arange(2000) == 1000, 2.0, 1.0)}},
        {"method_options": {"allocation": np.full(2000, 1.0 + 1e-9)}},
        {"epsilon": 1},
        {"method_options": {"schedule": lambda x: 2 * x}},
        {"workload": Marginals(DOMAIN, (("age",),))},
        {"domain": Domain({"sex": ["F", "M"], "age": 4, "income": ["high", "low"]})},
    ],
    ids=lambda differs: next(iter(differs)),
)
def test_keys_differ_with_every_parameter_however_it_prints(differs):
    base = {
        "domain": DOMAIN,
        "epsilon": 1.0,
        "workload": Marginals(DOMAIN, (("sex",),)),
        "method_options": {"allocation": np.ones(2000)},
    }
    with np.printoptions(threshold=5, precision=1):
        keys = [
            jax.random.key_data(key_for(0, params, np.arange(3)))
            for params in (base, copy.deepcopy(base), base | differs)
        ]
    np.testing.assert_array_equal(keys[0], keys[1])
    assert not np.array_equal(keys[0], keys[2])


def test_a_parameter_that_cannot_be_read_is_refused_by_name(codes):
    model = PrivateSynthesizer(DOMAIN, method="histogram", random_state=0)
    model.method_options = {"projection": (c for c in "simplex")}
    with pytest.raises(TypeError, match=r"method_options must be of arrays.*builtins\.generator"):
        model.fit(codes)
