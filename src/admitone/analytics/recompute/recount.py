"""One list in one window, counted once more from the archive, exactly: each item, and nothing rounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from admitone.analytics.admitted_records import stamps_in
from admitone.analytics.item_reader import ItemReader
from admitone.analytics.port import NOTHING_READ, Place
from admitone.analytics.recompute.archive import archived_records
from admitone.core.items import OTHER, ItemRule, split_list
from admitone.core.windows import MINUTE_MS, Window
from admitone.evidence.evidence_store import EvidenceStore
from admitone.ledger.port import LedgerReader


def recount(
    ledger: LedgerReader,
    store: EvidenceStore,
    rules: Sequence[ItemRule],
    topics: Collection[str],
    marks: Mapping[Place, int],
    window: Window,
    name: str,
    lateness: int,
    listed: Collection[str] = (),
) -> Counter[str]:
    """Return how much every item of a list weighs in a window, up to the marks of a store; what came late left out.

    `listed` are the values of the list's attribute that have a list of their own: the rest is in `*other`.
    """
    dimension, attribute, value = split_list(name)
    chosen = [number for number, rule in enumerate(rules) if rule.dimension == dimension]
    reader, found = ItemReader(rules), Counter[str]()
    for table in archived_records(ledger, store, topics):
        for batch in table.to_batches():
            counted, streams, events = _counted(batch, marks, window)
            values = batch.column("value").filter(pa.array(counted)).to_pylist()
            ends = events[counted] // MINUTE_MS * MINUTE_MS + MINUTE_MS
            late = streams[counted] >= ends + lateness
            _, items = reader.read(values)
            for each in items:
                if each.rule not in chosen:
                    continue
                keep = ~late[each.rows]
                if attribute is not None:
                    column = rules[each.rule].group_by.index(attribute)
                    keep &= _in_list(each.values[column], value, listed)
                for key, weight in zip(
                    each.keys.filter(pa.array(keep)).to_pylist(), each.weights[keep].tolist(), strict=True
                ):  # fmt: skip
                    found[key] += weight
    return found


def _counted(
    batch: pa.RecordBatch, marks: Mapping[Place, int], window: Window
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which records are in the window and below the marks, and the moments of all."""
    stamps = stamps_in(batch)
    places = zip(
        batch.column("topic_id").to_pylist(), batch.column("partition").to_pylist(), strict=True
    )
    reached = np.array([marks.get(place, NOTHING_READ) for place in places], dtype=np.int64)
    within = (stamps.event_times >= window.start_ms) & (stamps.event_times < window.end_ms)
    counted = within & (batch.column("offset").to_numpy() <= reached)
    return counted, stamps.stream_times, stamps.event_times


def _in_list(values: pa.StringArray, value: str | None, listed: Collection[str]) -> np.ndarray:
    texts = values.to_pylist()
    if value == OTHER:
        return np.array([text is not None and text not in listed for text in texts], dtype=bool)
    return np.array([text == value for text in texts], dtype=bool)
