"""Runs the given solvers of the registry one after another, each with a folder of its own.

python killed_child.py ROOT CHECKPOINTS NAMES, with names as a JSON list. Writes a digest of each
solution when it is done, and does not run again what has one.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # where `tests` is
from interruptions import case_of, numbers, solve


def folder_of(root, name):
    """Where a solver's checkpoints are."""
    return root / hashlib.sha256(name.encode()).hexdigest()[:16]


def digest_path(root, name):
    """Where the digest of its solution is."""
    return folder_of(root, name).with_suffix(".digest")


def main(root, with_checkpoints, names):
    """Runs what is not done."""
    for name in names:
        done = digest_path(root, name)
        if done.exists():
            continue
        options = {"checkpoint": folder_of(root, name), "every": 1} if with_checkpoints else {}
        digest = hashlib.sha256()
        for leaf in numbers(solve(case_of(name), **options)):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        beside = done.with_suffix(".tmp")
        beside.write_text(digest.hexdigest())
        os.replace(beside, done)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "1", json.loads(sys.argv[3]))
