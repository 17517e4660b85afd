"""`python -m benchmarks.sketches`: how exact the sketches are, beside published figures, and what they cost.

1. 10 million events, Zipf 1.1, into a table of 2,048 entries. Published for DataSketches' frequent items: an a-priori
   bound of about 17,090 and an error of about 3,000.
2. 1 million events, Zipf 1.2, K = 100. Best published recall of a Count-Min with a heap: 1.000 at 4096 x 4.
3. Many small merges, as minutes become a day (1,440) and a month (44,640).

Everything is generated; the truth is counted exactly beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from admitone.core.sketches import SketchParameters, WindowSketch
from admitone.core.summary import lg_size_for

HERE = Path(__file__).parent
Draws = npt.NDArray[np.int64]


def main() -> None:
    """Measure everything, print it and write it next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000, help="of the first table")
    parser.add_argument("--merges", type=int, default=44_640, help="minutes of the largest merge")
    options = parser.parse_args()
    document = {
        "command": "python -m benchmarks.sketches",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "frequent_items": frequent_items(options.events),
        "recall": [
            recall(min(1_000_000, options.events), width, depth)
            for width, depth in ((4096, 4), (1024, 5))
        ],
        "merges": [merges(minutes) for minutes in (1_440, 44_640) if minutes <= options.merges],
    }
    text = json.dumps(document, indent=2)
    print(text)
    if options.events == 10_000_000 and options.merges == 44_640:
        (HERE / "sketches.json").write_text(text + "\n")


def zipf(exponent: float, universe: int, events: int, seed: int) -> Draws:
    """Return items drawn with a probability that falls with their rank."""
    weights = np.arange(1, universe + 1, dtype=np.float64) ** -exponent
    edges = np.cumsum(weights)
    draws = np.random.default_rng(seed).random(events) * edges[-1]
    return np.searchsorted(edges, draws, side="right").astype(np.int64)


def counted(draws: Draws) -> dict[str, int]:
    """Return how often each item occurs."""
    items, counts = np.unique(draws, return_counts=True)
    return {f"item {i}": int(c) for i, c in zip(items.tolist(), counts.tolist(), strict=True)}


def frequent_items(events: int) -> dict[str, Any]:
    """Fill one table of 2,048 entries, in pieces of 100,000 events as batches do."""
    draws = zipf(1.1, 1 << 20, events, seed=11)
    sketch = WindowSketch(SketchParameters(k=100).widened())
    entries = 1 << lg_size_for(100)
    begun = time.perf_counter()
    for piece in np.array_split(draws, max(1, events // 100_000)):
        sketch.update(counted(piece))
    seconds = time.perf_counter() - begun
    true = np.bincount(draws, minlength=1 << 20)
    lower = {item: bounds.lower for item, bounds in sketch.summary.entries()}
    seen = max(int(true[int(item[5:])]) - count for item, count in lower.items())
    return {
        "events": events,
        "zipf": 1.1,
        "entries": entries,
        "a_priori_bound": round(3.5 / entries * events),
        "published_bound": 17_090,
        "offset": sketch.summary.offset,
        "largest_error_seen": seen,
        "published_error": 3_000,
        "bounds_violated": violations(sketch, true),
        "bytes": sizes(sketch),
        "ns_per_event": round(seconds / events * 1e9),
    }


def recall(events: int, width: int, depth: int) -> dict[str, Any]:
    """Return how many of the true top 100 are listed, and how wide their bounds are."""
    draws = zipf(1.2, 1 << 20, events, seed=12)
    counts = counted(draws)
    sketch = WindowSketch(SketchParameters(width=width, depth=depth, k=100))
    begun = time.perf_counter()
    sketch.update(counts)
    seconds = time.perf_counter() - begun
    true = np.bincount(draws, minlength=1 << 20)
    hundredth = int(np.sort(true)[-100])
    listed = sketch.top(100)
    heavy = [entry for entry in listed if true[int(entry.item[5:])] >= hundredth]
    return {
        "events": events,
        "zipf": 1.2,
        "count_min": f"{width} x {depth}",
        "k": 100,
        "recall": len(heavy) / 100,
        "published_recall": 1.0 if (width, depth) == (4096, 4) else None,
        "hundredth_count": hundredth,
        "widest_bounds": max(entry.upper - entry.lower for entry in listed),
        "bounds_violated": violations(sketch, true),
        "bytes": sizes(sketch),
        "ns_per_distinct_item": round(seconds / len(counts) * 1e9),
    }


def merges(minutes: int) -> dict[str, Any]:
    """Merge as many stored minutes into one window; every bound is checked against the truth."""
    per_minute, universe = 2_000, 100_000
    rng = np.random.default_rng(13)
    edges = np.cumsum(np.arange(1, universe + 1, dtype=np.float64) ** -1.1)
    true = np.zeros(universe, np.int64)
    whole = WindowSketch(SketchParameters().widened())
    seconds = 0.0
    for _ in range(minutes):
        draws = np.searchsorted(edges, rng.random(per_minute) * edges[-1], side="right")
        true += np.bincount(draws, minlength=universe)
        minute = WindowSketch(SketchParameters())
        minute.update(counted(draws))
        stored = minute.to_bytes()
        begun = time.perf_counter()
        whole.merge(WindowSketch.from_bytes(stored))
        seconds += time.perf_counter() - begun
    listed = whole.top(100)
    stated = max(entry.upper - entry.lower for entry in listed)
    errors = [entry.upper - int(true[int(entry.item[5:])]) for entry in listed]
    hundredth = int(np.sort(true)[-100])
    return {
        "minutes": minutes,
        "events": whole.total,
        "distinct": int((true > 0).sum()),
        "distinct_estimate": whole.summary.distinct(),
        "stated_error": stated,
        "stated_error_percent": round(stated / whole.total * 100, 4),
        "largest_error_seen": max(errors),
        "recall": sum(int(true[int(e.item[5:])]) >= hundredth for e in listed) / 100,
        "bounds_violated": violations(whole, true),
        "bytes": sizes(whole),
        "us_per_merge": round(seconds / minutes * 1e6, 1),
    }


def violations(sketch: WindowSketch, true: npt.NDArray[np.int64]) -> int:
    """Return how many items have a true count outside their bounds."""
    wrong = 0
    for item in np.flatnonzero(true).tolist():
        lower, upper = sketch.bounds(f"item {item}")
        wrong += not lower <= int(true[item]) <= upper
    return wrong


def sizes(sketch: WindowSketch) -> dict[str, int]:
    """Return the stored bytes of each part."""
    parts = sketch.to_bytes()
    return {"count_min": len(parts.sketch), "summary": len(parts.summary), "meta": len(parts.meta)}


if __name__ == "__main__":
    main()
