"""Upstream marks: how far a source has seen what others wrote to it, so that their replays are found (RPL-2).

Both stores compare the marks in their claiming transaction with those the deliveries were judged by, and move them in
the transaction that settles the block or makes it ambiguous, from the stream metadata in the block's own facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from admitone.core.errors import MarkMoved
from admitone.core.replay_filter import Progress, Reached, Upstream, filter_replays
from admitone.ledger.model import Claim, Source, UpstreamInfo
from admitone.ledger.store import Rows

_MOVE = (
    "INSERT INTO upstream VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (producer_id, partition, upstream_producer, upstream_partition) DO UPDATE SET"
    " highest = excluded.highest, last = excluded.last, replayed = upstream.replayed + excluded.replayed,"
    " order_violations = upstream.order_violations + excluded.order_violations"
)


def upstreams_of(rows: Rows, source: Source | None = None) -> list[UpstreamInfo]:
    """Return the marks by which replays are found, of one source or of all."""
    found = rows.all(
        "SELECT producer_id, partition, upstream_producer, upstream_partition, highest, last, replayed,"  # noqa: S608
        f" order_violations FROM upstream{'' if source is None else ' WHERE producer_id = %s AND partition = %s'}"
        " ORDER BY producer_id, partition, upstream_producer, upstream_partition",
        *(source or ()),
    )
    return [
        UpstreamInfo(
            Source(producer, partition), (upstream, of), Reached(highest, last), replayed, violations
        )
        for producer, partition, upstream, of, highest, last, replayed, violations in found
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


def move_upstream(rows: Rows, source: Source, facts: pa.Table) -> None:
    """Move the marks past the deliveries of a block; most blocks know of no upstream."""
    if sees_upstream(facts):
        progress = progress_of(facts, marks_of(upstreams_of(rows, source)))
        rows.change_each(
            _MOVE,
            [
                (*source, *upstream, *moved.after, moved.replayed, moved.order_violations)
                for upstream, moved in progress.items()
            ],
        )


def progress_of(facts: pa.Table, marks: Mapping[Upstream, Reached]) -> dict[Upstream, Progress]:
    """Return what the deliveries of a block do to the upstream marks."""
    if not sees_upstream(facts):
        return {}
    return filter_replays(facts["upstream"], None, marks).progress


def sees_upstream(facts: pa.Table) -> bool:
    """Tell whether a block holds stream metadata that is filtered by."""
    known = "upstream" in facts.column_names
    return known and facts["upstream"].null_count < facts.num_rows
