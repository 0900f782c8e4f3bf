"""Starts the processes of a run on many hosts, all of them here, and never waits for ever."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax

from dpjax.testing._trees import QUICK

PROGRAM = Path(__file__).with_name("one_host.py")
XLA_FLAGS = " ".join(
    [
        *(f"--{name}={value}".lower() for name, value in QUICK.items()),
        "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_multi_thread_eigen=false",
        "--xla_force_host_platform_device_count={}",
    ]
)


@contextlib.contextmanager
def reserved_port():
    """A free port, held so that nobody else gets it; what shares ports may listen on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Hosts:
    """The processes of one run, each with its devices, its number and a file for what it says."""

    def __init__(self, folder, what, processes, devices, port, **arguments):
        folder.mkdir(parents=True, exist_ok=True)
        self.outputs = [folder / f"output_{i}" for i in range(processes)]
        self.processes = []
        for i, path in enumerate(self.outputs):
            job = {"processes": processes, "process": i, "port": port, "folder": str(folder)}
            with path.open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-u", PROGRAM, what, json.dumps(job | arguments)],
                        stdout=output,
                        stderr=output,
                        env=os.environ
                        | {
                            "XLA_FLAGS": XLA_FLAGS.format(devices),
                            "DPJAX_TEST_X64": str(int(jax.config.jax_enable_x64)),
                            "PYTHONHASHSEED": "random",
                            "JAX_PLATFORMS": "cpu",
                        },
                    )
                )

    def said(self, i):
        """The end of what a process said."""
        # the trace of a crash alone may be longer than a few thousand characters
        return f"process {i}:\n" + self.outputs[i].read_text(errors="replace")[-20_000:]

    def wait(self, seconds):
        """Waits for all to end well; AssertionError with the words of one that did not."""
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes):
            failed = [i for i, p in enumerate(self.processes) if p.poll() not in (None, 0)]
            assert not failed, self.said(failed[0])
            late = [i for i, p in enumerate(self.processes) if p.poll() is None]
            assert time.monotonic() < deadline, "too long: " + self.said(late[0])
            time.sleep(0.02)
        for i, process in enumerate(self.processes):
            assert process.returncode == 0, self.said(i)

    def kill(self):
        """Ends them all."""
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def started(folder, what, *, processes, devices=1, **arguments):
    """Processes that run the function `what` of `one_host.py`, and end with this context."""
    with reserved_port() as port:
        hosts = Hosts(folder, what, processes, devices, port, **arguments)
        try:
            yield hosts
        finally:
            hosts.kill()
