"""How the result of a release shows itself."""

import jax
import numpy as np
import pytest

import dpjax


@pytest.mark.slow
def test_it_fits_two_lines_whatever_the_number_of_cells():
    workload = dpjax.queries.Prefix(5000)
    released = dpjax.release(
        workload,
        np.arange(5000, dtype=np.int32),
        dpjax.Budget(1.0, 1e-6),
        key=jax.random.key(0),
        method="histogram",
    )
    shown = repr(released)
    assert shown == (
        "Release(method='histogram', workload=Prefix, answers=[4999], log_probs=[5000])\n"
        "  epsilon 1.000 at delta 1e-06, relation='replace_one'"
    )
    assert len(shown) < 300
    assert str(released) == shown
    stacked = jax.tree.map(lambda leaf: leaf[None], released)
    assert "log_probs=[1, 5000]" in repr(stacked)
