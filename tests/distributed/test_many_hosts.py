"""Several processes, each with devices of its own, solve as one process with one device does."""

import jax
import numpy as np
import one_host
import pytest
from hosts import started

import dpjax

SOLVERS = (
    "DPSGD(linear)",  # Poisson
    "DPSGD(Risk, full batch, uniform average)",
    "RateConstrainedSGDA(gaussian, hard)",
    "OnlineToBatch(buffered)",
    "FrankWolfe(linear)",
    "GaussianFit(one noise)",
)
LIMIT = 240.0  # seconds, for the processes of one run


def launch(folder, what, processes, **arguments):
    """What each process returned, `[P]` dicts."""
    with started(folder, what, processes=processes, devices=4 // processes, **arguments) as hosts:
        hosts.wait(LIMIT)
    return [dict(np.load(folder / f"result_{i}.npz")) for i in range(processes)]


@pytest.mark.slow
def test_two_hosts_and_four(tmp_path):
    """In one test, since what it looks at takes long to make."""
    pytest.importorskip("orbax.checkpoint")
    shared = {"checkpoints": str(tmp_path / "checkpoints")}
    what = "solvers,refusals,checkpoints"
    two = launch(tmp_path / "two", what, 2, names=SOLVERS, **shared)
    what = "solvers,resume_elsewhere"
    four = launch(tmp_path / "four", what, 4, names=SOLVERS[:1], **shared)
    for results, names in ((two, SOLVERS), (four, SOLVERS[:1])):
        hosts_answer_as_one_device_does(results, names)
        parameters_shares_cells_and_seeds_over_hosts_answer_as_one_device_does(results)
        what_all_hosts_hold_is_the_same_to_the_bit(results)
        there_is_one_draw_for_each_coordinate(results)
    calls_that_differ_between_hosts_are_refused_on_all(two)
    a_record_outside_the_domain_on_one_host_stops_all(two)
    runs_go_on_from_their_checkpoints_to_the_bit(two)
    another_run_is_refused_on_all_hosts(two)
    assert all(str(result["progress"]) == "nothing" for result in two)
    other_hosts_are_another_run(four)


def put_together(results, prefix):
    """The leaves of a tree from the pieces that the processes hold; copies must be equal."""
    leaves = {}
    for name, piece in (
        (name, r[name]) for r in results for name in r if name.startswith(f"{prefix}/")
    ):
        leaf, start = map(int, name.removeprefix(f"{prefix}/").split("/"))
        pieces = leaves.setdefault(leaf, {})
        assert pieces.setdefault(start, piece).tobytes() == piece.tobytes()
    in_order = ([leaves[i][start] for start in sorted(leaves[i])] for i in sorted(leaves))
    return [pieces[0] if len(pieces) == 1 else np.concatenate(pieces) for pieces in in_order]


def close(found, expected):
    """Whether trees agree up to the order of sums."""
    for here, there in zip(found, map(np.asarray, jax.tree.leaves(expected)), strict=True):
        assert here.shape == there.shape
        assert here.dtype == there.dtype
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)


def hosts_answer_as_one_device_does(results, names):
    for name in names:
        alone = one_host.run(one_host.entry(name))
        close(put_together(results, f"{name}/params"), alone.params)
        close(put_together(results, f"{name}/info"), alone.info)


def parameters_shares_cells_and_seeds_over_hosts_answer_as_one_device_does(results):
    solver, problem, data = one_host.by_shards()
    expected = {
        "many_parameters": one_host.run(one_host.many_parameters()).params,
        "by_shards": one_host.run((solver, problem, dpjax.Records(data, len(data)))).params,
        "cells": one_host.run(one_host.cells()).params,
        "seeds": one_host.seeds(),
    }
    for name, params in expected.items():
        close(put_together(results, name), params)


def what_all_hosts_hold_is_the_same_to_the_bit(results):
    names = [name for name in results[0] if "/params/" in name or "/info/" in name]
    assert len(names) > 2
    for name in names:
        assert len({result[name].tobytes() for result in results}) == 1


def there_is_one_draw_for_each_coordinate(results):
    (noise,) = put_together(results, "noise_alone")
    alone = np.asarray(one_host.run(one_host.noise_alone()).params)
    # rows that pad a batch add to what rounding may move, and so to the deviation
    np.testing.assert_allclose(noise, alone, rtol=1e-5)
    assert np.unique(noise).size == one_host.DIM
    starts = {name.split("/")[-1] for r in results for name in r if name.startswith("noise_alone")}
    assert starts == {"0", "8"}  # two shares along the axis of parameters


def calls_that_differ_between_hosts_are_refused_on_all(two):
    for result in two:
        assert "got different key:" in str(result["keys"])
        assert str(result["keys"]).startswith("ValueError: all processes must make the same call")


def a_record_outside_the_domain_on_one_host_stops_all(two):
    for result in two:
        start = 'ValueError: data["y"] must lie in 0..1: 1 of '
        assert str(result["codes"]).startswith(start)
        assert str(result["cells"]).startswith("ValueError: codes of 'b' must lie in [0, 3): 1 of")


def runs_go_on_from_their_checkpoints_to_the_bit(two):
    for what in ("spread", "whole"):
        assert str(two[0][f"{what}/interrupted"]) == "Interrupted: by the test"
        heard = "RuntimeError: Interrupted in another process: by the test"
        assert str(two[1][f"{what}/interrupted"]) == heard
        for result in two:
            plain = [name for name in result if name.startswith(f"{what}/plain/")]
            assert len(plain) > 2
            for name in plain:
                assert result[name].tobytes() == result[name.replace("plain", "resumed")].tobytes()


def another_run_is_refused_on_all_hosts(two):
    for what, name in (("noise", "solver"), ("data", "data")):
        (message,) = {str(result[what]) for result in two}
        assert f"belongs to another run: it differs in {name}. Going on is refused" in message


def other_hosts_are_another_run(four):
    (message,) = {str(result["elsewhere"]) for result in four}
    assert "differs in data, problem, devices (4 of 2 processes as records=2 x params=2" in message
    assert "there, 4 of 4 processes" in message
