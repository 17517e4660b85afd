"""Counts without a log: what tests of answers and of those who keep them begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from admitone.analytics import counting_parameters, open_sketch_store
from admitone.analytics.port import CountedBatch, Delta, PartitionRead, SketchReader, SketchStore
from admitone.analytics.store_state import SourceProgress
from admitone.core.sketches import WindowSketch
from admitone.core.windows import MINUTE_MS, Window, parse_window
from admitone.settings import Settings, load_settings

T0 = parse_window("minute_202611151000").start_ms
COUNTED_AT = 1_763_200_000_123


def sketch_in(reader: SketchReader, window: Window, name: str) -> WindowSketch | None:
    """Return what is known about a list in one window."""
    return next((sketch for _, sketch in reader.sketches([window], name)), None)


@dataclass
class Counts:
    """A store that is told what to count."""

    home: Path
    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    settings: Settings = field(init=False)
    store: SketchStore = field(init=False)

    def __post_init__(self) -> None:
        self.settings = load_settings(self.home, **self.sections)
        self.store = open_sketch_store(self.settings)

    def add(
        self,
        minute: int,
        lists: Mapping[str, Mapping[str, int]],
        *,
        stream: int | None = None,
        late: int = 0,
    ) -> int:
        """Count items in a minute after T0, when the source had come to another; return the revision."""
        mark = self.store.marks().get(("T", 0), -1)
        deltas = []
        for name, counts in lists.items():
            sketch = WindowSketch(counting_parameters(self.settings).sketch)
            sketch.update(counts)
            sketch.late, sketch.updated_at = late, COUNTED_AT
            deltas.append(Delta(name, T0 + minute * MINUTE_MS, sketch.to_bytes()))
        reached = T0 + (minute if stream is None else stream) * MINUTE_MS
        return self.store.commit(
            CountedBatch(
                reads=[PartitionRead("admitted.traffic", "T", 0, mark, mark + 1, 1, 0, 0)],
                sources={(1, 0): SourceProgress(reached, T0)},
                deltas=deltas,
                counted_at=COUNTED_AT,
            )
        )
