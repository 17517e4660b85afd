"""The keys of a store: one table for each segment, one of them open.

A unique key cannot span tables, so all inserts go to the one open segment and the closed ones are only read. Every
claim holds the store's pointer row shared; opening a segment and giving segments up take it exclusively, in
transactions of their own. A segment keeps the length it was opened with, so a changed retention changes only the
segments that come after it. How a claim puts its keys in is each database's own (`Store.claim_keys`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from admitone.core.decisions import AdmissionState, BlockState
from admitone.core.errors import ConfigurationError
from admitone.core.segment_times import Segment, is_droppable, segment_for, segment_name
from admitone.ledger.activity import activity_of_sources, slowest_active
from admitone.ledger.claims import Holder, keys_of
from admitone.ledger.model import NEVER_FORGOTTEN, Pointer
from admitone.ledger.store import KeyClaim, Rows, Store

_LONGEST_STORE_NAME = 46
_CARRIED_AT_ONCE = 2_000


def must_be_a_store(name: str) -> None:
    """Raise unless a name can begin the names of tables."""
    if (
        not (name.isascii() and name.isprintable() and 0 < len(name) <= _LONGEST_STORE_NAME)
        or '"' in name
    ):
        raise ConfigurationError(
            f"A store of keys cannot be called {name!r}: its segments are tables.",
            f"choose at most {_LONGEST_STORE_NAME} plain characters",
        )


def table_of(store: str, segment: Segment) -> str:
    """Return a segment's table as a statement names it: the store and the moment it begins."""
    return '"' + segment_name(store, segment.start).replace("%", "%%") + '"'


def pointer_of(rows: Rows, store: str, lock: str = "") -> Pointer:
    """Return where a store stands, kept still when it is locked."""
    row = rows.first(
        f"SELECT retention, open_start, dropped_before FROM store WHERE name = %s{lock}",  # noqa: S608
        store,
    )
    if row is None:
        return Pointer(0, None, (), None)
    retention, open_start, dropped_before = row
    found = rows.all("SELECT start, length FROM segment WHERE store = %s ORDER BY start", store)
    segments = [Segment(*each) for each in found]
    return Pointer(
        retention,
        next((segment for segment in segments if segment.start == open_start), None),
        tuple(segment for segment in segments if segment.start != open_start),
        dropped_before,
    )


def open_segment(rows: Rows, store: str, newest_event_time: int, retention_ms: int) -> None:
    """Open the segment of the store's highest stream time, unless the open one can take its keys."""
    rows.change(
        "INSERT INTO store (name, retention) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        store,
        retention_ms,
    )
    pointer = pointer_of(rows, store, " FOR UPDATE")
    rows.change(
        "UPDATE store SET retention = greatest(retention, %s) WHERE name = %s", retention_ms, store
    )
    opened, wanted = pointer.opened, segment_for(newest_event_time, retention_ms)
    if opened is None or opened.start < wanted.start:
        rows.create_segment(table_of(store, wanted))
        rows.change("INSERT INTO segment VALUES (%s, %s, %s)", store, *wanted)
        rows.change("UPDATE store SET open_start = %s WHERE name = %s", wanted.start, store)
    elif opened.end <= newest_event_time:
        rows.change(
            "UPDATE segment SET length = %s WHERE store = %s AND start = %s",
            newest_event_time - opened.start + 1, store, opened.start,
        )  # fmt: skip


def found_in(
    rows: Rows, table: str, only: Collection[int] | None = None
) -> Iterator[tuple[int, Holder]]:
    """Yield the staged candidates that a segment holds a row for, by their ordinals."""
    for ordinal, block_id, held_ordinal, payload_hash, event_time, state, refused in rows.all(
        f"SELECT c.ordinal, k.block_id, k.ordinal, {rows.hash_bytes}, k.event_time, b.state, b.refused"  # noqa: S608
        f" FROM candidate c JOIN {table} k ON k.key = c.key JOIN block b ON b.block_id = k.block_id"
        + ("" if only is None else " WHERE c.ordinal = ANY(%s)"),
        *(() if only is None else (list(only),)),
    ):
        yield (
            ordinal,
            Holder(
                block_id, held_ordinal, payload_hash, event_time, BlockState(state),
                tuple(rows.loaded(refused)),
            ),
        )  # fmt: skip


def held_in_closed(rows: Rows, claim: KeyClaim) -> dict[int, Holder]:
    """Return the rows of closed segments that decide staged candidates; no other of these remains staged."""
    holders: dict[int, Holder] = {}
    for segment in claim.closed:
        for ordinal, holder in found_in(rows, table_of(claim.store, segment)):
            other = holders.get(ordinal)
            if claim.decides(ordinal, holder) and (
                other is None or holder.block_id < other.block_id
            ):
                holders[ordinal] = holder
    if holders:
        rows.change("DELETE FROM candidate WHERE ordinal = ANY(%s)", list(holders))
    return holders


def held_in_open(
    rows: Rows, claim: KeyClaim, only: Collection[int] | None = None
) -> tuple[dict[int, Holder], dict[int, Holder]]:
    """Return the rows of the open segment that decide staged candidates, and those that decide nothing."""
    holders: dict[int, Holder] = {}
    absent: dict[int, Holder] = {}
    for ordinal, holder in found_in(rows, table_of(claim.store, claim.opened), only):
        (holders if claim.decides(ordinal, holder) else absent)[ordinal] = holder
    return holders, absent


def take_over(rows: Rows, claim: KeyClaim, absent: Mapping[int, Holder]) -> None:
    """Put a block in the place of rows that decide nothing; of those that only expired, keep what they were.

    They had expired for the block's source, but may be live for one that is behind it.
    """
    table = table_of(claim.store, claim.opened)
    expired = [n for n, held in absent.items() if held.admission is AdmissionState.ADMITTED]
    if expired:
        rows.change(
            "INSERT INTO displaced SELECT %s, c.ordinal, %s, k.key, k.payload_hash, k.event_time,"  # noqa: S608
            f" k.block_id, k.ordinal FROM candidate c JOIN {table} k ON k.key = c.key"
            " WHERE c.ordinal = ANY(%s)",
            claim.block_id, claim.opened.start, expired,
        )  # fmt: skip
    rows.change(
        f"UPDATE {table} AS k SET payload_hash = c.payload_hash, event_time = c.event_time,"  # noqa: S608
        " block_id = %s, ordinal = c.ordinal FROM candidate c"
        " WHERE k.key = c.key AND c.ordinal = ANY(%s)",
        claim.block_id, list(absent),
    )  # fmt: skip


def put_back(rows: Rows, store: str, block_id: int, ordinals: Collection[int] | None) -> None:
    """Put back the rows that a block took over and does not need: all of them, or those of some ordinals."""
    displaced = rows.all("SELECT ordinal, start FROM displaced WHERE block_id = %s", block_id)
    if not displaced:
        return
    pointer = pointer_of(rows, store, " FOR SHARE")
    for segment in (*pointer.closed, pointer.opened):
        wanted = [
            ordinal
            for ordinal, start in displaced
            if segment is not None
            and start == segment.start
            and (ordinals is None or ordinal in ordinals)
        ]
        if segment is not None and wanted:
            rows.change(
                f"UPDATE {table_of(store, segment)} AS k SET payload_hash = d.payload_hash,"  # noqa: S608
                " event_time = d.event_time, block_id = d.first_block, ordinal = d.first_ordinal"
                " FROM displaced d WHERE d.block_id = %s AND d.ordinal = ANY(%s)"
                " AND k.key = d.key AND k.block_id = d.block_id",
                block_id, wanted,
            )  # fmt: skip
    rows.change("DELETE FROM displaced WHERE block_id = %s", block_id)


def expire(store: Store, name: str, retention_ms: int, idle_after_ms: int) -> list[str]:
    """Drop the segments of a store whose keys have expired for every active source; return their names.

    No lock is held for long: what is to be found out is found out before, what is never forgotten goes into the open
    segment in portions, and the database drops a segment its own way. A closed segment takes nothing more, so what was
    read about it stays true.
    """
    slowest = store.read(
        lambda rows: _slowest_that_matters(rows, name, retention_ms, idle_after_ms)
    )
    if slowest is None:
        return []
    expired = store.read(lambda rows: _expired(rows, name, slowest, retention_ms))
    for segment in expired:
        _carry_unresolved(store, name, segment)
    if expired:
        expired = store.run(lambda rows: _give_up(rows, name, expired, slowest, retention_ms))
    return [segment_name(name, segment.start) for segment in expired if store.drop(name, segment)]


def _slowest_that_matters(
    rows: Rows, store: str, retention_ms: int, idle_after_ms: int
) -> int | None:
    """Return the stream time of a store's slowest active source; None where not even the fastest lets a segment go.

    Who is active is looked up block by block, so it is not asked for nothing.
    """
    sources = activity_of_sources(rows, store)
    if not sources or not _expired(rows, store, sources[-1].stream_time, retention_ms):
        return None
    return slowest_active(rows, sources, idle_after_ms).stream_time


def _expired(
    rows: Rows, store: str, slowest_stream_time: int, retention_ms: int, lock: str = ""
) -> list[Segment]:
    """Return the closed segments that no source needs; those that were given up before stay given up."""
    pointer = pointer_of(rows, store, lock)
    retention = max(pointer.retention, retention_ms)
    return [
        segment
        for segment in pointer.closed
        if (pointer.dropped_before is not None and segment.end <= pointer.dropped_before)
        or is_droppable(segment.end, slowest_stream_time, retention)
    ]


def _carry_unresolved(store: Store, name: str, segment: Segment) -> None:
    """Put what is never forgotten of a segment that is about to go into the open one as well.

    Such rows are found by their blocks' own identities.
    """
    unresolved = store.read(
        lambda rows: rows.all(
            f"SELECT block_id, facts FROM block JOIN facts USING (block_id) WHERE state IN ({NEVER_FORGOTTEN})"  # noqa: S608
        )
    )
    for block_id, facts in unresolved:
        keys = keys_of(facts)
        for start in range(0, len(keys), _CARRIED_AT_ONCE):
            portion = keys[start : start + _CARRIED_AT_ONCE]
            store.run(lambda rows: _carry(rows, name, segment, block_id, portion))  # noqa: B023


def _carry(rows: Rows, store: str, segment: Segment, block_id: int, keys: Sequence[bytes]) -> None:
    opened = pointer_of(rows, store, " FOR SHARE").opened
    assert opened is not None
    rows.change_each(
        f"INSERT INTO {table_of(store, opened)} SELECT * FROM {table_of(store, segment)}"  # noqa: S608
        " WHERE key = %s AND block_id = %s ON CONFLICT DO NOTHING",
        [(rows.key(key), block_id) for key in sorted(keys)],
    )


def _give_up(
    rows: Rows, store: str, found: Sequence[Segment], slowest_stream_time: int, retention_ms: int
) -> list[Segment]:
    """Note that what segments held is forgotten, if they still are expired; return these.

    From then on events of that time are too old for every source, also for one that has read nothing yet.
    """
    still = _expired(rows, store, slowest_stream_time, retention_ms, " FOR UPDATE")
    chosen = [segment for segment in found if segment in still]
    if chosen:
        end = max(segment.end for segment in chosen)
        rows.change(
            "UPDATE store SET dropped_before = greatest(coalesce(dropped_before, %s), %s) WHERE name = %s",
            end, end, store,
        )  # fmt: skip
    return chosen
