"""`make fuzz`: break what damc reads, for some minutes, with new seeds every time.

    python -m tests.fuzz --minutes 5 [--seed 1]

Prints how often damage was told, changed nothing, or was accepted, which only files without a
digest, such as pictures, and forged digests can be. A failure is printed with the entry that
`tests/fuzz/corpus.json` wants, so that the tests meet it for ever, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from tests.fuzz import damage, targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    failures: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(name)
        folders = {
            kind: (make(root / kind), read, harms)
            for kind, (make, read, harms) in targets.FOLDERS.items()
        }
        intact = {kind: read(folder) for kind, (folder, read, _) in folders.items()}
        files = targets.make_files(root / "files")
        end = time.monotonic() + 60 * options.minutes
        for k in range(10**9):
            if time.monotonic() > end:
                break
            seed = f"{options.seed} {k}"
            for kind, (folder, read, harms) in folders.items():
                harm = harms[k % len(harms)]
                with damage.damaged(folder, root / "copy") as copy:
                    what = targets.HARMS[harm](copy, random.Random(seed))
                    result = damage.outcome(read, copy, intact[kind])
                fine = targets.allowed(harm, result)
                counts[f"{kind} {harm} {word(result, fine)}"] += 1
                if not fine:
                    was = f"{what}: {result}"
                    failures.append({"target": kind, "harm": harm, "seed": seed, "was": was})
            path = files[k % len(files)]
            with damage.damaged(path.parent, root / "copy") as copy:
                damage.flip_file(copy / path.name, random.Random(seed))
                result = damage.outcome(targets.read_file, copy / path.name, None)
            fine = not result.startswith(("RAW", "HANG"))
            counts[f"file {path.suffix or path.name} {word(result, fine)}"] += 1
            if not fine:
                failures.append({"target": path.name, "harm": "flips", "seed": seed, "was": result})
            targets.read_words(random.Random(seed))
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    for failure in failures:
        print(json.dumps(failure), file=sys.stderr)
    print(f"{sum(counts.values())} attacks from seed {options.seed}, {len(failures)} failures")
    return 1 if failures else 0


def word(result: str, fine: bool) -> str:
    first = result.split()[0]
    return "accepted" if fine and first == "SILENT" else first


if __name__ == "__main__":
    sys.exit(main())
