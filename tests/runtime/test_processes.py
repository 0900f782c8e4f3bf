"""What one process can show of the talk between several; tests/distributed has several."""

from types import SimpleNamespace

import filelock
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpjax
from dpjax.core._records import device_count, held, own_parts, spans_processes, whole
from dpjax.runtime.checkpoint._fingerprint import check_alike
from dpjax.runtime.devices import _placement
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


def test_arrays_of_some_processes_alone_are_refused(monkeypatch):
    """Whoever talks, talks to all."""
    devices = [SimpleNamespace(process_index=i) for i in (0, 2)]
    sharding = SimpleNamespace(is_fully_addressable=False, device_set=devices)
    monkeypatch.setattr(_placement, "shardings_of", lambda tree: [sharding])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert processes_of(()) == Processes(True)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(ValueError, match="of one process or of all, got 2 of 4"):
        processes_of(())


@pytest.mark.parametrize("error", [ValueError("a: b"), OSError("full"), ImportError("x" * 5000)])
def test_errors_of_python_come_over_as_they_are(error):
    other = _unpacked(_packed(error))
    assert type(other) is type(error)
    assert str(error).startswith(str(other))
    assert len(str(other)) >= min(len(str(error)), 4000)


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
