"""People as records: what they are made of, and how far one of them moves a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.problems import PersonLoss, Risk
from dpjax.sampling import FullBatch, PoissonSampler
from dpjax.solvers import DPSGD


def _loss(w, row):
    return 0.5 * (row["x"] @ w - row["y"]) ** 2


def _table(ids, rng, scale=1.0):
    n = len(ids)
    return {"x": scale * rng.normal(size=(n, 3)), "y": rng.normal(size=n), "id": np.array(ids)}


PROBLEM = Risk(PersonLoss(_loss), jnp.zeros(3))
ROWS = Risk(_loss, jnp.zeros(3))


def test_a_person_is_the_mean_of_the_rows_that_are_kept(rng):
    table = _table([5, 3, 5, 5, 9, 3], rng)
    people = dpjax.PersonRecords(table, unit="id", max_rows=2).people()
    assert set(people["rows"]) == {"x", "y"}
    assert people["present"].tolist() == [[True, True], [True, True], [True, False]]
    point = jnp.array([0.3, -1.0, 2.0])
    rows = np.asarray(ROWS.per_example_gradients(point, table))
    got = np.asarray(PROBLEM.per_example_gradients(point, people))
    np.testing.assert_allclose(got[0], rows[[1, 5]].mean(0), rtol=1e-5)  # both of person 3
    np.testing.assert_allclose(got[2], rows[4], rtol=1e-5)
    pairs = [rows[list(pair)].mean(0) for pair in ((0, 2), (0, 3), (2, 3))]
    assert min(np.abs(got[1] - pair).max() for pair in pairs) < 1e-5
    losses = PROBLEM.per_example_losses(point, people)
    np.testing.assert_allclose(losses[2], ROWS.per_example_losses(point, table)[4], rtol=1e-5)
    absent = jax.tree.map(lambda leaf: leaf[:1], people) | {"present": np.zeros((1, 2), bool)}
    assert not np.any(np.asarray(PROBLEM.per_example_gradients(point, absent)))
    # the same object of a loss or an equal one: one program
    assert hash(PersonLoss(_loss)) == hash(PROBLEM.loss)
    assert PersonLoss(_loss) == PROBLEM.loss


def test_a_frame_of_numbers_is_a_table(rng):
    pandas = pytest.importorskip("pandas")
    table = {name: column for name, column in _table([5, 3, 5], rng).items() if name != "x"}
    frame = pandas.DataFrame(table)
    framed, mapped = (
        dpjax.PersonRecords(each, unit="id", max_rows=2).people() for each in (frame, table)
    )
    jax.tree.map(np.testing.assert_array_equal, framed, mapped)
    with pytest.raises(TypeError, match=r"mapping of arrays .* or a data frame, got list"):
        dpjax.PersonRecords([1, 2], unit=[1, 2], max_rows=2).people()


def test_what_takes_people_says_so_and_shows_no_row(rng):
    records = dpjax.PersonRecords(
        _table([5, 3, 5], rng) | {"name": ["Ann", "Bo", "Ann"]}, unit="name", max_rows=2
    )
    assert "Ann" not in repr(records)
    budget, key = dpjax.Budget(1.0, 1e-5), jax.random.key(0)
    with pytest.raises(TypeError, match="must be a Risk for PersonRecords, got LinearMod") as told:
        dpjax.fit(dpjax.problems.LinearModel("logistic", 3), records, budget, key=key)
    assert "Ann" not in str(told.value)
    solver = DPSGD(FullBatch(1), 1.0, 1.0, 1.0, 3.0)
    with pytest.raises(ValueError, match=r"of PersonRecords take records.people\(\)") as told:
        dpjax.solve(solver, PROBLEM, records, key=key)
    assert "Ann" not in str(told.value)


def test_who_joins_does_not_change_the_type_of_other_rows():
    """By search: lists and columns of frames would be typed by all of their rows."""
    pandas = pytest.importorskip("pandas")
    for column in (list, pandas.Series):
        alone, *joined = (
            dpjax.PersonRecords(
                {"t": column([50_000, 7, *more])}, unit=range(2 + len(more)), max_rows=1
            ).people()["rows"]["t"]
            for more in ([], [1], [None], [0.5], [2**62 + 1], [2**64], [True])
        )
        for rows in joined:
            assert rows.dtype == alone.dtype == np.float64
            np.testing.assert_array_equal(rows[:2], alone)
    # which not all versions of pandas hold
    huge = dpjax.PersonRecords({"t": [50_000, 7, 10**400]}, unit=range(3), max_rows=1)
    assert huge.people()["rows"]["t"].dtype == np.float64
    typed = dpjax.PersonRecords({"t": np.array([1, 2], np.int8)}, unit=[1, 2], max_rows=1)
    assert typed.people()["rows"]["t"].dtype == np.int8


def _moved(data):
    """The sum of clipped gradients of one step at 0, in units of the clip norm."""
    solver = DPSGD(
        FullBatch(1),
        noise_multiplier=0.0,
        clip_norm=1.0,
        learning_rate=1.0,
        batch_size=1.0,
        average="last",
    )
    return np.asarray(dpjax.solve(solver, PROBLEM, data, key=jax.random.key(0)).params)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_all_rows_of_a_person_move_a_step_by_one_clip_norm(max_rows, rng):
    """However many rows join, leave or change, and however large they are."""
    largest = {"joined": 0.0, "replaced": 0.0}
    for number in (1, 2, 5):
        others = _table([0, 1, 2, 0, 2, 2, 0], rng)  # of one shape: compiled once
        before = dpjax.PersonRecords(others, unit="id", max_rows=max_rows).people()
        after = []
        for scale in (1.0, 100.0):
            joining = _table([1.5] * number, rng, scale)
            table = {k: np.concatenate([joining[k], others[k]]) for k in others}
            after.append(dpjax.PersonRecords(table, unit="id", max_rows=max_rows).people())
            # everybody else is as before
            left = jax.tree.map(lambda leaf: np.delete(leaf, 2, 0), after[-1])
            jax.tree.map(np.testing.assert_array_equal, left, before)
        sums = [_moved(data) for data in (before, *after)]
        largest["joined"] = max(largest["joined"], *(np.linalg.norm(s - sums[0]) for s in sums))
        largest["replaced"] = max(largest["replaced"], np.linalg.norm(sums[1] - sums[2]))
    assert 0.99 < largest["joined"] <= 1 + 1e-4
    assert 0.1 < largest["replaced"] <= 2 + 1e-4


@pytest.mark.slow  # compiles a run
def test_training_per_person_learns(rng):
    ids = np.repeat(np.arange(2000), 3)
    x = rng.normal(size=(6000, 3))
    table = {"x": x, "y": x @ np.array([1.0, -1.0, 0.5]), "id": ids}
    people = dpjax.PersonRecords(table, unit="id", max_rows=3).people()
    solver = DPSGD.for_budget(PROBLEM, 2000, dpjax.Budget(2.0, 1e-5), steps=100)
    assert isinstance(solver.sampler, PoissonSampler)
    solution = dpjax.solve(solver, PROBLEM, people, key=jax.random.key(1))
    np.testing.assert_allclose(solution.params, [1.0, -1.0, 0.5], atol=0.2)
    assert solution.guarantee.epsilon(1e-5) <= 2.0


def test_what_is_refused(rng):
    table = _table([1, 2], rng)
    with pytest.raises(TypeError, match=r"mapping of arrays .*, got list"):
        dpjax.PersonRecords([[1, 2]], unit=[1], max_rows=1).people()
    with pytest.raises(ValueError, match=r"unit must have shape \[2\], one a row, got \[3\]"):
        dpjax.PersonRecords(table, unit=[1, 2, 3], max_rows=1).people()
    empty = {name: column[:0] for name, column in table.items()}
    with pytest.raises(ValueError, match="table must have n >= 1 rows"):
        dpjax.PersonRecords(empty, unit="id", max_rows=1).people()


@pytest.mark.parametrize("of", [str, int, lambda i: (i, "x"), lambda i: i / 2])
def test_people_keep_their_places_when_rows_of_one_change(of):
    """Fixed orders of batches are by place: that of the others must not depend on a person."""
    ids = [of(i) for i in (3, 1, 4, 5, 2, 3)]
    rows = {"x": np.array([9.0, 1.0, 4.0, 5.0, 2.0, 8.0])}
    both = dpjax.PersonRecords(rows, unit=ids, max_rows=2).people()["rows"]["x"]
    later = {"x": np.append(rows["x"][1:5], 7.0)}
    one = dpjax.PersonRecords(later, unit=ids[1:], max_rows=2).people()["rows"]["x"]
    changed = np.flatnonzero((np.asarray(both) != np.asarray(one)).any(axis=1))
    assert changed.tolist() == [2]


def test_fit_takes_people_and_makes_the_loss_theirs():
    rng = np.random.default_rng(4)
    ids = np.repeat(np.arange(800), 3)
    x = rng.normal(size=(2_400, 3))
    records = dpjax.PersonRecords(
        {"x": x, "y": x @ [0.5, -0.2, 0.1], "id": ids}, unit="id", max_rows=2
    )
    budget = dpjax.Budget(2.0, 1e-5, "replace_one")
    fitted = dpjax.fit(ROWS, records, budget, key=jax.random.key(0), validation=records)
    assert fitted.guarantee.epsilon(1e-5) <= 2.0
    assert fitted.solver.sampler.rate * 800 == pytest.approx(fitted.solver.batch_size)
    by_hand = dpjax.fit(
        PROBLEM, records.people(), budget, key=jax.random.key(0), validation=records.people()
    )
    np.testing.assert_array_equal(fitted.params, by_hand.params)
    assert fitted.validation_loss == by_hand.validation_loss
    linear = Risk.linear(lambda margin, y: 0.5 * (margin - y) ** 2, 3)
    np.testing.assert_allclose(
        dpjax.fit(linear, records, budget, key=jax.random.key(0)).params, fitted.params, atol=1e-4
    )
    with pytest.raises(ValueError, match="num_records is required under add_or_remove_one"):
        dpjax.fit(ROWS, records, dpjax.Budget(2.0, 1e-5), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"unit must be one of \['x', 'y', 'id'\], got 'who'"):
        dpjax.PersonRecords(records.table, unit="who", max_rows=2).people()
    with pytest.warns(UserWarning, match="num_records = 2400 is far from the 800 records"):
        dpjax.fit(PROBLEM, records, budget, key=jax.random.key(0), num_records=2_400)
