"""What one process can show of the talk between several; tests/distributed has several."""

import filelock
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpjax
from dpjax.core._records import device_count, held, own_parts, spans_processes, whole
from dpjax.runtime.checkpoint._fingerprint import check_alike
from dpjax.runtime.devices._placement import Processes, _packed, _unpacked, processes_of

DEVICES = np.array(jax.devices())


def spread(array):
    return jax.device_put(array, NamedSharding(Mesh(DEVICES, ("x",)), PartitionSpec("x")))


def test_one_process_talks_to_nobody():
    alone = processes_of((spread(np.arange(16)), np.ones(3), "text"))
    assert alone == Processes()
    assert alone.is_first
    assert alone.gather(b"own") == [b"own"]
    assert alone.agree(lambda: 3) == alone.on_first(lambda: 3) == 3
    array = np.arange(3)
    assert alone.send(array) is array
    check_alike(alone, anything=array)

    def fail():
        raise ZeroDivisionError("own")

    with pytest.raises(ZeroDivisionError, match="own"):
        alone.on_first(fail)


@pytest.mark.parametrize("error", [ValueError("a: b"), OSError("disk full"), ImportError("orbax")])
def test_errors_of_python_come_over_as_they_are(error):
    other = _unpacked(_packed(error).ljust(200))
    assert type(other) is type(error)
    assert str(other) == str(error)


def test_errors_of_others_come_over_by_name():
    other = _unpacked(_packed(filelock.Timeout("file")))
    assert type(other) is RuntimeError
    assert str(other).startswith("Timeout in another process: ")


def test_what_lies_here():
    array = spread(np.arange(16))
    assert not spans_processes(array)
    assert whole(array) is array
    assert held(array).tolist() == list(range(16))
    places, pieces = zip(*own_parts(array), strict=True)
    assert len(set(places)) == DEVICES.size
    assert sorted(np.concatenate(pieces).tolist()) == list(range(16))


def test_devices_are_those_of_arrays_and_of_static_fields():
    over = NamedSharding(Mesh(DEVICES, ("x",)), PartitionSpec("x"))
    domain = dpjax.queries.Domain({"a": 16})
    workload = dpjax.queries.Marginals(domain, (("a",),), sharding=over)
    problem = dpjax.problems.QueryRelease(workload)
    assert device_count(np.ones(3)) == device_count(jax.numpy.ones(3)) == 1
    for tree in ([spread(np.arange(16))], problem, {"nested": (1, [problem])}):
        assert device_count(tree) == DEVICES.size
