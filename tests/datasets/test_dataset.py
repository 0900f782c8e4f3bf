import dataclasses

import numpy as np
import pytest

from dpjax.datasets import Dataset


def make(n=20, **changes):
    fields = {
        "x": np.arange(2 * n, dtype=np.float32).reshape(n, 2),
        "y": (np.arange(n) % 2).astype(np.int32),
        "group": (np.arange(n) % 3).astype(np.int32),
        "feature_names": ("a", "b"),
        "label_names": ("no", "yes"),
        "group_names": ("p", "q", "r"),
        "norm_bound": 1.0,
        "name": "toy",
        "source": "here",
        "licence": "CC0",
        "subject": np.arange(n, dtype=np.int32) // 2,
    }
    return Dataset(**{**fields, **changes})


def test_split_is_a_disjoint_cover_and_keeps_records_whole():
    d = make(21)
    train, test = d.split(test=0.3, seed=4)
    assert (len(train), len(test)) == (15, 6)
    rows = np.concatenate([train.x[:, 0], test.x[:, 0]]) / 2
    assert sorted(rows.tolist()) == list(range(21))
    for part in (train, test):
        index = (part.x[:, 0] / 2).astype(int)
        np.testing.assert_array_equal(part.y, d.y[index])
        np.testing.assert_array_equal(part.group, d.group[index])
        np.testing.assert_array_equal(part.subject, d.subject[index])
        assert part.feature_names == d.feature_names


def test_split_depends_on_seed_and_size_alone():
    d = make(40)
    other = dataclasses.replace(d, x=-d.x, y=1 - d.y)
    first, again, moved = d.split(seed=1)[1], other.split(seed=1)[1], d.split(seed=2)[1]
    np.testing.assert_array_equal(first.x, -again.x)
    assert not np.array_equal(first.x, moved.x)


@pytest.mark.parametrize("test", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_split_refuses_shares_outside_the_unit_interval(test):
    with pytest.raises(ValueError, match=r"test must lie in \(0, 1\), got"):
        make().split(test=test)


def test_split_refuses_an_empty_side_and_bad_seeds():
    with pytest.raises(ValueError, match=r"test=0.01, which puts 0 of 20"):
        make().split(test=0.01)
    with pytest.raises(ValueError, match=r"seed must be >= 0, got -1"):
        make().split(seed=-1)
    with pytest.raises(TypeError, match="seed must be an integer"):
        make().split(seed=0.5)


def test_as_dict_is_what_solve_takes():
    d = make()
    data = d.as_dict()
    assert list(data) == ["x", "y", "group"]
    assert all(data[name] is getattr(d, name) for name in data)


def test_select_takes_indices_and_masks():
    d = make()
    mask = d.y == 1
    np.testing.assert_array_equal(d.select(mask).x, d.select(np.flatnonzero(mask)).x)
    assert len(d.select([])) == 0
    with pytest.raises(TypeError, match="rows must hold integers or booleans"):
        d.select(np.array([0.5]))
    with pytest.raises(IndexError):
        d.select([20])


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"group must have shape \[20\], got \[3\]"):
        make(group=np.zeros(3, np.int32))
    with pytest.raises(ValueError, match=r"x must have shape \[20, 2\], got \[20, 3\]"):
        make(x=np.zeros((20, 3), np.float32))


def test_repr_shows_no_record():
    assert repr(make()) == "Dataset('toy', n=20, p=2, groups=['p', 'q', 'r'])"
