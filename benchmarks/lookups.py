"""How long a question about one event takes, in a ledger of ten million admissions (EVD-3).

python -m benchmarks.lookups [--keys 10000000] [--ledger sqlite:FILE | postgresql://...]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from admitone.core.decisions import BlockState, Reason, Verdict
from admitone.ledger import open_ledger
from admitone.ledger.decision_rows import decisions
from admitone.ledger.model import (
    Claim,
    Claimed,
    Destination,
    Filter,
    Outcome,
    Source,
)
from admitone.ledger.port import Ledger
from admitone.settings import load_settings
from benchmarks.synthetic import START_MS, block, blocks, event_id

SEED, BLOCK = 7, 100_000
SOURCE = Source(1, 0)
RETENTION_MS = 8_640_000_000


def fill(ledger: Ledger, keys: int) -> None:
    """Admit so many events that nobody sent."""
    ledger.register_source(SOURCE, "bench", "raw", "topic")
    epoch = ledger.take_epoch(SOURCE, ledger.take_generation("bench"))
    ends = np.zeros(4, np.int64)
    for number, facts in enumerate(blocks(keys, BLOCK, seed=SEED)):
        claimed = ledger.claim(
            Claim(
                source=SOURCE,
                epoch=epoch,
                after=ledger.mark(SOURCE),
                facts=facts,
                journal=b"-",
                destinations=(Destination("admitted", "id", "folder", tuple(ends.tolist())),),
                retention_ms=RETENTION_MS,
                rules=1,
            )
        )
        assert isinstance(claimed, Claimed)
        partition = facts["partition"].to_numpy()
        offsets = np.empty(len(partition), np.int64)
        for place in range(4):
            rows = np.flatnonzero(partition == place)
            offsets[rows] = ends[place] + np.arange(len(rows))
            ends[place] += len(rows)
        moment = START_MS + number
        ledger.conclude(claimed.block, epoch, Outcome(BlockState.SETTLED, offsets, moment, moment))
        print(f"\r{(number + 1) * BLOCK:,} admitted", end="", flush=True)
    print()


def questions(keys: int) -> dict[str, Callable[[random.Random], Filter]]:
    """Return the ways to ask, each with a random example."""

    def identity(rng: random.Random) -> Filter:
        start = rng.randrange(keys // BLOCK) * BLOCK
        found = block(start, BLOCK, SEED)["identity"][rng.randrange(BLOCK)].as_py()
        return Filter(identity=found)

    return {
        "event id": lambda rng: Filter(event_id=event_id(rng.randrange(keys))),
        "event id that never came": lambda rng: Filter(event_id=f"nobody-{rng.random()}"),
        "identity": identity,
        "source position": lambda rng: Filter(source=(None, 0, rng.randrange(keys))),
        "place on the log": lambda rng: Filter(
            bus=("admitted", rng.randrange(4), rng.randrange(keys // 4))
        ),
        "reason (none has it)": lambda _: Filter(reason=Reason.TOO_OLD),
        "verdict (none has it)": lambda _: Filter(verdict=Verdict.QUARANTINED),
        "time (nothing then)": lambda _: Filter(since=START_MS + 10**9),
    }


def main() -> None:
    """Fill a ledger, ask, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--ledger", default="sqlite:ledger.db")
    parser.add_argument("--probes", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        ledger = open_ledger(load_settings(home, ledger={"url": options.ledger}))
        began = time.perf_counter()
        fill(ledger, options.keys)
        print(f"filled in {time.perf_counter() - began:.0f} s")
        rng = random.Random(SEED)
        found = {}
        print(f"{'question':28}{'median ms':>10}{'p95 ms':>10}")
        for name, ask in questions(options.keys).items():
            times = []
            for _ in range(options.probes):
                wanted = ask(rng)
                began = time.perf_counter()
                rows = list(decisions(ledger, wanted))
                times.append((time.perf_counter() - began) * 1000)
                assert len(rows) == (0 if name.endswith((")", "never came")) else 1), (name, rows)
            found[name] = (statistics.median(times), statistics.quantiles(times, n=20)[-1])
            print(f"{name:28}{found[name][0]:>10.1f}{found[name][1]:>10.1f}")
        ledger.close()
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
