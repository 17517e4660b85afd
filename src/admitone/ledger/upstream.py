"""Upstream marks: how far a source has seen what others wrote to it, so that their replays are found (RPL-2).

Both stores compare the marks in their claiming transaction with those the deliveries were judged by, and move them in
the transaction that settles the block or makes it ambiguous, from the stream metadata in the block's own facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from admitone.core.errors import MarkMoved
from admitone.core.replay_filter import Progress, Reached, Upstream, filter_replays
from admitone.ledger.model import Claim, Source, UpstreamInfo

SELECT_UPSTREAM = (
    "SELECT producer_id, partition, upstream_producer, upstream_partition, highest, last, replayed,"
    " order_violations FROM upstream"
)
UPSTREAM_ORDER = " ORDER BY producer_id, partition, upstream_producer, upstream_partition"
_UPSERT = (
    "INSERT INTO upstream VALUES ({})"
    " ON CONFLICT (producer_id, partition, upstream_producer, upstream_partition) DO UPDATE SET"
    " highest = excluded.highest, last = excluded.last, replayed = upstream.replayed + excluded.replayed,"
    " order_violations = upstream.order_violations + excluded.order_violations"
)
_COLUMNS = 8


def upsert_upstream(placeholder: str) -> str:
    """Return the statement that takes `moved_rows`."""
    return _UPSERT.format(", ".join([placeholder] * _COLUMNS))


def upstreams_from(rows: Iterable[tuple[Any, ...]]) -> list[UpstreamInfo]:
    """Return what rows of `SELECT_UPSTREAM` describe."""
    return [
        UpstreamInfo(
            Source(producer, partition), (upstream, of), Reached(highest, last), replayed, violations
        )
        for producer, partition, upstream, of, highest, last, replayed, violations in rows
    ]  # fmt: skip


def marks_of(infos: Iterable[UpstreamInfo]) -> dict[Upstream, Reached]:
    """Return the marks of one source."""
    return {info.upstream: info.reached for info in infos}


def must_have_seen(claim: Claim, found: Iterable[UpstreamInfo]) -> None:
    """Raise `MarkMoved` unless the marks are those by which the claim's deliveries were judged."""
    marks = marks_of(found)
    if marks != claim.upstream:
        raise MarkMoved(
            f"Source {tuple(claim.source)} was expected to have seen {claim.upstream}, it has seen {marks}."
        )


def progress_of(facts: pa.Table, marks: Mapping[Upstream, Reached]) -> dict[Upstream, Progress]:
    """Return what the deliveries of a block do to the upstream marks; most blocks know of none."""
    if not sees_upstream(facts):
        return {}
    return filter_replays(facts["upstream"], None, marks).progress


def sees_upstream(facts: pa.Table) -> bool:
    """Tell whether a block holds stream metadata that is filtered by."""
    known = "upstream" in facts.column_names
    return known and facts["upstream"].null_count < facts.num_rows


def moved_rows(source: Source, moved: Mapping[Upstream, Progress]) -> Iterator[tuple[int, ...]]:
    """Yield the row of each upstream that moved, counters as what is added to them."""
    for upstream, progress in moved.items():
        yield (*source, *upstream, *progress.after, progress.replayed, progress.order_violations)
