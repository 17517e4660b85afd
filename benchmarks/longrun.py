"""`make longrun`: two hundred days of deduplication, compressed: every duplicate found, no new key taken for one.

Event time advances fast, everything else is real: blocks of several source partitions are claimed and settled, segments
open and expire. A fifth of the deliveries are duplicates of keys chosen evenly over the whole window, mostly through
another partition than the first; some keys come again as soon as they have expired, and are new once more. What must
come out is arithmetic: key n comes first as delivery `n mod size` of block `n div size`, at n times the step. So
verdict and first delivery of everything are known without asking the ledger. At the end its bytes are held against
the sizing model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from admitone.core.decisions import CODE_OF_VERDICT, BlockState, Verdict
from admitone.core.sizing import COSTS, DAY_MS, column_bytes
from admitone.ledger.columns import FACTS_SCHEMA, UPSTREAM_TYPE
from admitone.ledger.model import (
    Claim,
    Claimed,
    Destination,
    Outcome,
    Source,
)
from admitone.ledger.port import Ledger
from benchmarks.bytes_per_key import STORES, Store, is_key, rest
from benchmarks.synthetic import EVENT_CLASS, RUN, START_MS

HERE = Path(__file__).parent
SOURCES = [Source(1, partition) for partition in range(4)]
PLACES = (Destination("admitted", "admitted-1", "kafka", (0, 0, 0, 0)),)
ADMITTED, DUPLICATE = CODE_OF_VERDICT[Verdict.ADMITTED], CODE_OF_VERDICT[Verdict.DUPLICATE]
PROBE_EVERY = 1_000
"""One key in so many comes again when it has expired; no duplicate is ever made of it."""
ID_BYTES = 16
ALLOWED_ERROR = 0.10


@dataclass(frozen=True)
class Plan:
    """Which keys are delivered when."""

    keys: int
    days: int
    retention_ms: int
    size: int
    duplicates: float
    seed: int = 1
    begins_at: int = 0
    """How far behind the beginning of a segment."""

    @property
    def start(self) -> int:
        """Return when the first key comes."""
        interval = self.retention_ms // 2
        return START_MS // interval * interval + self.begins_at

    @property
    def step_ms(self) -> int:
        """Return how far apart in event time two new keys are."""
        return self.days * DAY_MS // self.keys

    @property
    def blocks(self) -> int:
        """Return how many blocks there are; the last one is not cut short."""
        return -(-self.keys // self.size)

    def time_of(self, keys: Any) -> Any:
        """Return when keys come for the first time."""
        return self.start + keys * self.step_ms

    def end_of(self, block: int) -> int:
        """Return the stream time at the end of a block."""
        return int(self.time_of((block + 1) * self.size - 1))

    def oldest_live(self, block: int) -> int:
        """Return the first key that has not expired at the end of a block."""
        edge = self.end_of(block) - self.retention_ms + 1 - self.start
        return max(0, -(-edge // self.step_ms))

    def new(self, block: int) -> np.ndarray:
        """Return the keys that come for the first time."""
        return np.arange(block * self.size, (block + 1) * self.size)

    def again(self, block: int) -> np.ndarray:
        """Return keys that come again, chosen evenly over the whole window."""
        chance = np.random.default_rng((self.seed, block))
        wanted = round(self.size * self.duplicates / (1 - self.duplicates))
        keys = chance.integers(self.oldest_live(block), (block + 1) * self.size, wanted)
        return keys[keys % PROBE_EVERY != 0]

    def expired(self, block: int) -> np.ndarray:
        """Return the keys kept for it that have expired since the block before."""
        before = self.oldest_live(block - 1) if block else 0
        keys = np.arange(before, self.oldest_live(block))
        return keys[keys % PROBE_EVERY == 0]


@dataclass
class Tally:
    """What came out."""

    deliveries: int = 0
    new: int = 0
    duplicates: int = 0
    expired_again: int = 0
    wrong: list[str] = field(default_factory=list)
    expired_segments: list[str] = field(default_factory=list)


def main() -> None:
    """Run it, print what came out, write it next to this file; exit 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=sorted(STORES), default="sqlite")
    parser.add_argument("--keys", type=int, default=20_000_000, help="distinct keys")
    parser.add_argument("--days", type=int, default=200, help="of event time")
    parser.add_argument("--retention", type=int, default=100, help="days")
    parser.add_argument("--block", type=int, default=50_000, help="new keys in a block")
    parser.add_argument("--duplicates", type=float, default=0.2)
    options = parser.parse_args()
    plan = Plan(
        options.keys, options.days, options.retention * DAY_MS, options.block, options.duplicates
    )
    with STORES[options.store]() as store:
        begun = time.perf_counter()
        tally = simulate(store.ledger, plan)
        seconds = time.perf_counter() - begun
        sizes = compared(store, options.store, plan, tally)
    document = {
        "command": "make longrun",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "store": options.store,
        "days": options.days,
        "retention_days": options.retention,
        "seconds": round(seconds),
        "deliveries": tally.deliveries,
        "new_keys": tally.new,
        "duplicates_found": tally.duplicates,
        "expired_keys_new_again": tally.expired_again,
        "wrong_decisions": len(tally.wrong),
        "expired_segments": tally.expired_segments,
        "bytes": sizes,
    }
    print(json.dumps(document, indent=2))
    (HERE / f"longrun_{options.store}.json").write_text(json.dumps(document, indent=2) + "\n")
    for problem in tally.wrong[:10]:
        print(problem, file=sys.stderr)
    too_far = [name for name, row in sizes.items() if abs(row["error"]) > ALLOWED_ERROR]
    for name in too_far:
        print(f"The model is off by more than {ALLOWED_ERROR:.0%} for {name}.", file=sys.stderr)
    if tally.wrong or too_far:
        sys.exit(1)


def simulate(ledger: Ledger, plan: Plan) -> Tally:
    """Deliver everything, block by block, and compare each decision with the arithmetic."""
    tally = Tally()
    for source in SOURCES:
        ledger.register_source(source, "longrun", "raw", "raw-1")
    epochs = {source: ledger.take_epoch(source, None) for source in SOURCES}
    numbers = np.zeros(plan.blocks, dtype=np.int64)
    for block in range(plan.blocks):
        source = SOURCES[block % len(SOURCES)]
        keys = plan.new(block), plan.again(block), plan.expired(block)
        everything = np.concatenate(keys)
        times = np.full(len(everything), plan.end_of(block))
        times[: plan.size] = plan.time_of(keys[0])
        claimed = decide(ledger, source, epochs[source], plan.retention_ms, everything, times)
        numbers[block] = claimed.block.block_id
        _compare(tally, plan, claimed, keys, numbers)
        tally.expired_segments += ledger.expire_segments(plan.retention_ms)
        if block % max(1, plan.blocks // 20) == 0:
            print(f"{block / plan.blocks:4.0%} {tally.deliveries:>12,} deliveries", file=sys.stderr)
    return tally


def decide(
    ledger: Ledger,
    source: Source,
    epoch: int,
    retention_ms: int,
    keys: np.ndarray,
    times: np.ndarray,
) -> Claimed:
    """Claim and settle deliveries of these keys."""
    mark = ledger.mark(source)
    facts = _facts(mark.offset + 1, keys, times)
    clock = time.time_ns() // 1_000_000
    claimed = ledger.claim(Claim(source, epoch, mark, facts, b"-", PLACES, retention_ms, 1, clock))
    assert isinstance(claimed, Claimed), claimed
    admitted = np.count_nonzero(claimed.verdicts["verdict"].to_numpy() == ADMITTED)
    offsets = np.arange(mark.offset + 1, mark.offset + 1 + admitted)
    ledger.conclude(claimed.block, epoch, Outcome(BlockState.SETTLED, offsets, clock, clock))
    return claimed


def _compare(
    tally: Tally,
    plan: Plan,
    claimed: Claimed,
    keys: tuple[np.ndarray, np.ndarray, np.ndarray],
    numbers: np.ndarray,
) -> None:
    new, again, expired = keys
    expected = np.repeat([ADMITTED, DUPLICATE, ADMITTED], [len(part) for part in keys])
    first = np.full(len(expected), -1)
    first_ordinal = np.full(len(expected), -1)
    seconds = slice(len(new), len(new) + len(again))
    first[seconds] = numbers[again // plan.size]
    first_ordinal[seconds] = again % plan.size
    found = claimed.verdicts
    right = found["verdict"].to_numpy() == expected
    right &= found["first_block"].fill_null(-1).to_numpy() == first
    right &= found["first_ordinal"].fill_null(-1).to_numpy() == first_ordinal
    everything = np.concatenate(keys)
    tally.wrong += [
        f"key {everything[row]}: expected {expected[row]} of {first[row]}-{first_ordinal[row]}, got"
        f" {found.slice(row, 1).to_pylist()}"
        for row in np.flatnonzero(~right).tolist()
    ]
    tally.deliveries += len(expected)
    tally.new += len(new)
    tally.duplicates += int(np.count_nonzero(right[seconds]))
    tally.expired_again += len(expired)


def compared(store: Store, name: str, plan: Plan, tally: Tally) -> dict[str, Any]:
    """Return the bytes of keys and of columns next to what the sizing model says."""
    cost, sizes = COSTS[name], store.sizes()
    gone = sum(
        _keys_between(plan, int(segment.rpartition(".")[2])) for segment in tally.expired_segments
    )
    kept = tally.new + tally.expired_again - gone
    model = {
        "keys": kept * cost.key,
        "columns": column_bytes(cost, plan.blocks, tally.deliveries, ID_BYTES),
    }
    measured = {
        "keys": sum(size for table, size in sizes.items() if is_key(table)),
        "columns": rest(sizes),
    }
    return {
        part: {
            "measured": measured[part],
            "model": round(model[part]),
            "error": round(model[part] / measured[part] - 1, 4),
        }
        for part in model
    }


def _keys_between(plan: Plan, start_ms: int) -> int:
    """Return how many keys were claimed while the segment that begins there was open."""
    interval = plan.retention_ms // 2
    blocks = np.arange(plan.blocks)
    ends = plan.start + ((blocks + 1) * plan.size - 1) * plan.step_ms
    mine = blocks[ends // interval * interval == start_ms]
    return int(len(mine) * plan.size + sum(len(plan.expired(block)) for block in mine.tolist()))


def _facts(start: int, keys: np.ndarray, times: np.ndarray) -> pa.Table:
    size = len(keys)
    identities = _identities(keys)
    zeros = np.zeros(size)
    columns = [
        np.arange(start, start + size),
        times,
        pa.array([RUN]).dictionary_encode().take(pa.array(zeros.astype(int))),
        pa.array([EVENT_CLASS]).dictionary_encode().take(pa.array(zeros.astype(int))),
        [identities[at : at + ID_BYTES // 2].hex() for at in range(0, 32 * size, 32)],
        _digests(identities, size),
        _digests(_identities(~keys), size),
        times,
        np.maximum.accumulate(times),
        zeros.astype(np.uint8),
        zeros.astype(np.int16),
        (keys % 4).astype(np.int32),
        pa.nulls(size, UPSTREAM_TYPE),
    ]
    return pa.table(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field_.type)
            for column, field_ in zip(columns, FACTS_SCHEMA, strict=True)
        ],
        schema=FACTS_SCHEMA,
    )


def _identities(keys: np.ndarray) -> bytes:
    """Return 32 bytes for each key that look like a hash and depend on nothing but its number (splitmix64)."""
    words = (keys.astype(np.uint64)[:, None] << np.uint64(2)) + np.arange(4, dtype=np.uint64)
    words = (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return (words ^ (words >> np.uint64(31))).astype("<u8").tobytes()


def _digests(data: bytes, size: int) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), size, [None, pa.py_buffer(data)])


if __name__ == "__main__":
    main()
