import numpy as np
import pytest

from benchmarks.datasets._scaled import Scaled, signed_log
from dpjax.datasets._dataset import (
    Bins,
    OneHot,
    encode,
    feature_names,
    norm_bound,
)


def test_one_hot_groups_and_unknown_values():
    block = OneHot("c", ("a", "rest"), groups={"b": "rest", "z": "nowhere"})
    np.testing.assert_array_equal(
        block.encode(np.array(["a", "b", "rest", "z", "new"])),
        [[1, 0], [0, 1], [0, 1], [0, 0], [0, 0]],
    )
    assert block.names() == ("c=a", "c=rest")


def test_one_hot_of_integer_codes_read_as_floats():
    block = OneHot("c", (0, 1, 2))
    got = block.encode(np.array([0.0, 2.0, np.nan, 1.5, -1.0]))
    np.testing.assert_array_equal(got, [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]])


def test_bins_are_closed_below_and_the_last_is_open_above():
    block = Bins("v", (0, 10, 20))
    got = block.encode(np.array([-1, 0, 9.99, 10, 1e9, np.inf, np.nan, -np.inf]))
    want = [[0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(got, want)
    assert block.names() == ("v:[0,10)", "v:[10,20)", "v:[20,inf)")


def test_scaled_clips_to_public_bounds():
    values = np.array([-5.0, 0.0, 5.0, 10.0, 99.0, np.nan, np.inf, -np.inf])
    got = Scaled("v", 0.0, 10.0).encode(values)[:, 0]
    np.testing.assert_allclose(got, [-1, -1, 0, 1, 1, 0, 1, -1])
    logs = Scaled("v", 1e-4, 1.0, np.log).encode(np.array([0.0, 1e-2, 7.0]))[:, 0]
    np.testing.assert_allclose(logs, [-1, 0, 1], atol=1e-6)
    money = Scaled("v", -1e6, 1e6, signed_log).encode(np.array([-1e9, 0.0, 1e9]))[:, 0]
    np.testing.assert_allclose(money, [-1, 0, 1])


def test_no_record_whatever_exceeds_the_norm_bound():
    blocks = (
        OneHot("c", (0, 1)),
        Bins("v", (0, 1)),
        Bins("v", (0, 1)),
        Scaled("v", -1.0, 1.0),
    )
    values = np.array([-1e30, -1, 0, 0.5, 1, 1e30, np.nan, np.inf, -np.inf])
    x = encode({"c": values, "v": values}, blocks)
    assert x.shape == (9, 7)
    assert len(feature_names(blocks)) == 7
    assert x.dtype == np.float32
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    assert norms.max() == pytest.approx(norm_bound(blocks))


def test_a_missing_column_is_named():
    with pytest.raises(KeyError, match="'v'"):
        encode({"w": np.zeros(1)}, (Bins("v", (0,)),))


def test_an_empty_table_gives_no_rows():
    blocks = (OneHot("c", ("a",)), Bins("v", (0, 1)), Scaled("v", 0.0, 1.0))
    assert encode({"c": np.array([], str), "v": np.array([])}, blocks).shape == (0, 4)
