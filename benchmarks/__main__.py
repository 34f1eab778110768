"""`python -m benchmarks [NAME ...] [--out DIR]`: benchmarks as tables and as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import (
    chains,
    check,
    compiled,
    densities,
    exact,
    growth,
    iteration,
    nuts,
    parts,
    prior,
    sampling,
    sbi,
    scaling,
    steps,
    verdict,
)
from benchmarks.timing import machine

BENCHMARKS = {
    "sampling": sampling.rows,
    "prior": prior.rows,
    "parts": parts.rows,
    "iteration": iteration.rows,
    "growth": growth.rows,
    "exact": exact.rows,
    "steps": steps.rows,
    "chains": chains.rows,
    "compiled": compiled.rows,
    "densities": densities.rows,
    "posteriors": densities.posteriors,
    "nuts": nuts.rows,
    "sbi": sbi.rows,
    "scaling": scaling.rows,
    "scaling-check": scaling.check,
    "averaging": scaling.averaging,
    "verdict": verdict.rows,
}
SEEDED = (
    "densities",
    "nuts",
    "posteriors",
    "sbi",
    "verdict",
)  # they take seeds, and names of targets
ASKED = ("nuts",)  # run only if named, as they need packages that damc has no use for


def main() -> None:
    """Runs the benchmarks that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--check", action="store_true", help="hold ratios against their floors")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"of {', '.join(SEEDED)}")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="their targets, by name")
    parser.add_argument(
        "--no-sampler", action="store_true", help="densities without their amortized samplers"
    )
    parser.add_argument("--minutes", type=float, help="that a posterior may take")
    given = parser.parse_args()
    unknown = set(given.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    if given.check:
        failures = check.failures()
        raise SystemExit("\n".join(failures) if failures else 0)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.names or [name for name in BENCHMARKS if name not in ASKED]:
        choices = {"seeds": given.seeds, "names": given.only} if name in SEEDED else {}
        choices = {key: value for key, value in choices.items() if value}
        if name == "densities":
            choices["sampler"] = not given.no_sampler
        if name == "posteriors" and given.minutes:
            choices["minutes"] = given.minutes
        rows = BENCHMARKS[name](**choices)
        file = given.out / f"{name}.json"
        file.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
        print(f"\n{_table(rows)}\nwritten to {file}")
    print(f"\nmeasured on {machine()}")


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [[str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (names, *lines)
    )


if __name__ == "__main__":
    main()
