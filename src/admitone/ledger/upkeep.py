"""The writes that change no decision: durable evidence, originals that expire, closed runs, accepted topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from admitone.core.errors import NotFound, RunIsRed
from admitone.ledger.model import AcceptedTopic, Attempt, ChainedClosing, Closure, EvidenceFile
from admitone.ledger.sources import database_of
from admitone.ledger.store import Rows, Store

_JOURNAL_AT_ONCE = 8 << 20
_JOURNAL_EXPIRED = (
    "evidence_at < %s AND state IN ('SETTLED', 'RETRACTED')"
    " AND block_id NOT IN (SELECT block_id FROM resolution WHERE evidence_at IS NULL)"
)


def record_evidence(
    rows: Rows,
    block_ids: Sequence[int],
    files: Sequence[EvidenceFile],
    at: int,
    resolution_ids: Sequence[int] = (),
    database: str | None = None,
) -> bool:
    """Say that the evidence of these blocks, or resolutions, is durable in these files; False if others hold it."""
    if database is not None and database_of(rows) != database:
        return False
    made_from = (
        ("block", "block_id", sorted(set(block_ids))),
        ("resolution", "resolution_id", sorted(set(resolution_ids))),
    )
    if any(_has_evidence(rows, *member) for member in made_from):
        listed: dict[str, bytes] = dict(
            rows.all(
                "SELECT path, digest FROM evidence WHERE path = ANY(%s)",
                [file.path for file in files],
            )
        )
        return all(listed.get(file.path) == file.digest for file in files)
    rows.change_each(
        "INSERT INTO evidence (path, kind, run_id, rows, digest, checksum) VALUES (%s, %s, %s, %s, %s, %s)",
        [
            (file.path, file.kind, rows.text(file.run_id), file.rows, file.digest, file.checksum)
            for file in files
        ],
    )
    for table, key, numbers in made_from:
        rows.change_each(
            f"INSERT INTO evidence_{table} VALUES (%s, %s)",  # noqa: S608
            [(file.path, number) for file in files for number in numbers],
        )
        rows.change(
            f"UPDATE {table} SET evidence_at = %s WHERE {key} = ANY(%s)",  # noqa: S608
            at, numbers,
        )  # fmt: skip
    return True


def replace_evidence(rows: Rows, file: EvidenceFile) -> None:
    """Note the new checksum of a file that was written again with the same rows."""
    changed = rows.change(
        "UPDATE evidence SET checksum = %s WHERE path = %s AND digest = %s",
        file.checksum, file.path, file.digest,
    )  # fmt: skip
    if changed != 1:
        raise NotFound(f"The ledger lists no file {file.path} with these rows.")


def expire_journal(store: Store, evidence_before: int) -> int:
    """Drop journal rows whose evidence was durable before a moment, portion by portion; return how many."""
    found = store.read(
        lambda rows: rows.all(
            "SELECT block_id, length(journal.deliveries) FROM journal JOIN block USING (block_id)"  # noqa: S608
            f" WHERE {_JOURNAL_EXPIRED}",
            evidence_before,
        )
    )
    delete = (
        "DELETE FROM journal WHERE block_id IN (SELECT block_id FROM block"  # noqa: S608
        f" WHERE {_JOURNAL_EXPIRED} AND block_id = ANY(%s))"
    )
    return sum(
        store.run(lambda rows: rows.change(delete, evidence_before, numbers), durable=False)  # noqa: B023
        for numbers in _portions(found, _JOURNAL_AT_ONCE)
    )


def newest_block_of(rows: Rows, run_id: str) -> int:
    """Return the newest block that was claimed with deliveries of a run; 0 if there is none.

    It waits for the claims under way: one of them may have an older number and be seen later.
    """
    rows.all(f"SELECT 1 FROM run WHERE {rows.run_key} = %s FOR UPDATE", rows.key_of_run(run_id))  # noqa: S608
    condition, values = rows.holds_run(run_id)
    row = rows.first(f"SELECT coalesce(max(block_id), 0) FROM block WHERE {condition}", *values)  # noqa: S608
    return int(row[0]) if row else 0


def keep_rules(rows: Rows, rules_hash: bytes, document: bytes) -> None:
    """Keep a document of rules."""
    rows.change(
        "INSERT INTO rules (hash, document) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        rules_hash, document,
    )  # fmt: skip


def note_attempt(rows: Rows, attempt: Attempt) -> None:
    """Keep a try at closing a run."""
    rows.change(
        f"INSERT INTO closing_attempt ({rows.run_key}, at, author, closed, document) VALUES (%s, %s, %s, %s, %s)",  # noqa: S608
        rows.key_of_run(attempt.run_id), attempt.at, rows.text(attempt.author), int(attempt.closed),
        rows.text(attempt.document),
    )  # fmt: skip


def close_run(rows: Rows, closure: Closure, newest_block: int) -> None:
    """Close a run, unless a block was claimed for it after the newest one that was checked, or is in flight."""
    closed, run_id = 0, closure.attempt.run_id
    if newest_block_of(rows, run_id) == newest_block and _is_next(rows, closure.closing):
        condition, values = rows.holds_run(run_id)
        closed = rows.change(
            f"UPDATE run SET state = 'CLOSED', artifact = %s WHERE {rows.run_key} = %s AND state = 'OPEN'"  # noqa: S608
            f" AND NOT EXISTS (SELECT 1 FROM block WHERE state = 'IN_FLIGHT' AND {condition})",
            closure.artifact, rows.key_of_run(run_id), *values,
        )  # fmt: skip
    if closed != 1:
        raise RunIsRed(
            f"Run {run_id!r} took deliveries, or a run was closed, while it was being checked.",
            f"admitone close {run_id}",
        )
    note_attempt(rows, closure.attempt)
    if closure.closing is not None:
        added = closure.closing
        rows.change(
            f"INSERT INTO closing (number, {rows.run_key}, statement, seal, head) VALUES (%s, %s, %s, %s, %s)",  # noqa: S608
            added.number, rows.key_of_run(run_id), added.statement,
            None if added.seal is None else rows.text(added.seal), added.head,
        )  # fmt: skip


def _is_next(rows: Rows, added: ChainedClosing | None) -> bool:
    """Tell whether a closing follows the last one in the chain."""
    if added is None:
        return True
    rows.lock("closings")
    row = rows.first("SELECT coalesce(max(number), 0) FROM closing")
    assert row is not None
    return bool(row[0] + 1 == added.number)


def accept_topic(rows: Rows, accepted: AcceptedTopic) -> bool:
    """Accept an incarnation of a topic; False when it is the one that counts already."""
    place = (accepted.cluster, accepted.topic)
    # Numbers are given out before they are committed: the last one must be the last to count.
    rows.lock(f"topic {place}")
    last = rows.first(
        "SELECT topic_id FROM accepted_topic WHERE cluster = %s AND topic = %s ORDER BY number DESC LIMIT 1",
        *place,
    )
    if last == (accepted.topic_id,):
        return False
    rows.change(
        "INSERT INTO accepted_topic (cluster, topic, topic_id, at, author, reason)"
        " VALUES (%s, %s, %s, %s, %s, %s)",
        *place, accepted.topic_id, accepted.at, rows.text(accepted.author),
        rows.text(accepted.reason),
    )  # fmt: skip
    return True


def _has_evidence(rows: Rows, table: str, key: str, numbers: list[int]) -> bool:
    found = rows.all(
        f"SELECT evidence_at FROM {table} WHERE {key} = ANY(%s) ORDER BY {key} FOR UPDATE",  # noqa: S608
        numbers,
    )
    return any(evidence_at is not None for (evidence_at,) in found)


def _portions(found: Iterable[tuple[int, ...]], limit: int) -> Iterator[list[int]]:
    """Yield numbers, given with their sizes, in portions of at least one and about so much."""
    portion: list[int] = []
    held = 0
    for number, size in found:
        if portion and held + size > limit:
            yield portion
            portion, held = [], 0
        portion.append(number)
        held += size
    if portion:
        yield portion
