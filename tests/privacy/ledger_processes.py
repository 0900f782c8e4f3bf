"""A program for test_ledger_processes.py: kills and races real processes on one ledger file.

    python ledger_processes.py folder right|wrong  ->  a JSON report on stdout

Children are forked, so that the imports are paid once. The wrong writers are the ones that the
ledger is not: they show that the scenario sees what goes wrong.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from dp_accounting import dp_event as dpe

from dpjax.privacy import Budget, BudgetExceeded, Guarantee, Ledger
from dpjax.privacy.ledger._file import LedgerFile

SMALL = Guarantee(dpe.ZCDpEvent(1e-9))
QUERY = Guarantee(dpe.GaussianDpEvent(30.0))
BUDGET = Budget(1.0, 1e-5)


def written_beside(self, content):
    """The file that is right, under a name of this process."""
    kept, self.path = self.path, f"{self.path}.{os.getpid()}"
    right_write(self, content)
    beside, self.path = self.path, kept
    return beside


def write_in_place(self, content):
    """A writer that empties the file before it fills it again."""
    text = Path(written_beside(self, content)).read_text()
    with open(self.path, "w") as file:
        for start in range(0, len(text), 256):
            file.write(text[start : start + 256])
            file.flush()
            time.sleep(0.005)


def write_late(self, content):
    """Leaves others time to read what is about to be replaced."""
    time.sleep(0.005)
    os.replace(written_beside(self, content), self.path)


def locked_by_nobody(self):
    return contextlib.nullcontext()


right_write = LedgerFile.write


def spends_and_says_so(path, out, round_number, acknowledge_first):
    ledger, number = Ledger(path), 0
    while True:
        label = f"{round_number}-{number}"
        if acknowledge_first:
            os.write(out, f"{label}\n".encode())
        ledger.spend(SMALL, label=label)
        if not acknowledge_first:
            os.write(out, f"{label}\n".encode())
        number += 1


def in_child(work):
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def killed(path, rounds, *, acknowledge_first=False):
    """How many spends were acknowledged, and the rounds after which the file lacked one."""
    chance, acknowledged, wrong = random.Random(0), set(), []
    Ledger(path, BUDGET)
    for number in range(rounds):
        source, sink = os.pipe()
        child = in_child(lambda s=sink, n=number: spends_and_says_so(path, s, n, acknowledge_first))
        os.close(sink)
        said = os.read(source, 1 << 16)  # it is at work
        time.sleep(chance.uniform(0.0, 0.025))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(source, 1 << 16):
            said += more
        os.close(source)
        acknowledged |= set(said.decode().split())
        try:
            kept = [entry.label for entry in Ledger(path).entries]
        except ValueError:
            return len(acknowledged), [*wrong, number]  # no more to be had from it
        unheard = set(kept) - acknowledged  # recorded, and killed before it was acknowledged
        if (
            not acknowledged <= set(kept)
            or len(kept) != len(set(kept))
            or len(unheard) > number + 1
        ):
            wrong.append(number)
    return len(acknowledged), wrong


def raced(path, workers):
    """How many spends were admitted in all, and how many the file holds."""
    Ledger(path, BUDGET)
    source, sink = os.pipe()
    go_in, go_out = os.pipe()

    def work():
        os.close(go_out)
        os.read(go_in, 1)  # returns when the parent closes its end
        ledger = Ledger(path, BUDGET)
        with contextlib.suppress(BudgetExceeded, ValueError, OSError):
            while True:
                ledger.spend(QUERY)
                os.write(sink, b"x")

    children = [in_child(work) for _ in range(workers)]
    os.close(go_out)
    os.close(sink)
    admitted = 0
    while more := os.read(source, 1 << 16):
        admitted += len(more)
    for child in children:
        os.waitpid(child, 0)
    try:
        return admitted, len(Ledger(path).entries)
    except ValueError:
        return admitted, -1


def right(folder):
    alone = Ledger(BUDGET)
    while alone.fits(QUERY):
        alone.spend(QUERY)
    alone.fits(SMALL)  # what the children share is computed before they fork
    return {
        "one_process": len(alone.entries),
        "killed": killed(folder / "kill.json", 15),
        "raced": raced(folder / "race.json", 3),
    }


def wrong(folder):
    report = {"late_record": killed(folder / "late.json", 8, acknowledge_first=True)}
    LedgerFile.write = write_in_place
    report["in_place"] = killed(folder / "place.json", 20)
    LedgerFile.write, LedgerFile.locked = write_late, locked_by_nobody
    return report | {"unlocked": raced(folder / "unlocked.json", 4)}


if __name__ == "__main__":
    print(json.dumps({"right": right, "wrong": wrong}[sys.argv[2]](Path(sys.argv[1]))))
