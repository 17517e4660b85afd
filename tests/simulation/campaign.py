"""`make simulate`: runs `admitone simulate` and keeps what came of it in docs/campaigns."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.kept_results import KEPT, Result, today

NAME = "simulator"
STRIKES = "everything of the table above, in simulated histories of the boundary, by seed"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run histories and exit as the command does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first history")
    parser.add_argument("--histories", type=int, default=20_000)
    parser.add_argument("--results", type=Path, default=KEPT, help="where the result is kept")
    wanted = parser.parse_args(arguments)
    options = [
        "simulate",
        "--seed",
        str(wanted.seed),
        "--histories",
        str(wanted.histories),
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "admitone", *options], stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="")
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(done.returncode or 1)
    Result(
        campaign=NAME,
        count=found["histories"],
        counted=f"histories, {found['port_calls']:,} calls",
        struck=found["faults"],
        findings=len(found["violations"]),
        seed=wanted.seed,
        minutes=round(found["seconds"] / 60, 1),
        command=" ".join(("admitone", *options)),
        date=today(),
    ).keep(wanted.results)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
