"""Writes the evidence of what was decided, many blocks to a file, and records that it is durable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from admitone.core.errors import IntegrityError
from admitone.evidence.evidence_file import path_of, put_file
from admitone.evidence.evidence_rows import ARCHIVE, DeliveryRows
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.set_aside import set_aside
from admitone.evidence.source import EvidenceSource
from admitone.infra.crash_points import crash_point
from admitone.ledger.model import EvidenceFile
from admitone.ledger.port import Ledger

_BLOCKS_AT_ONCE = 32
_RESOLUTIONS_AT_ONCE = 512
_BYTES_AT_ONCE = 256 << 20

_Group = dict[int, tuple[DeliveryRows, pa.Table | None]]
"""Blocks or resolutions by their number, each with the deliveries its evidence needs."""


class EvidenceWriter:
    """Turns what the ledger decided into files under a prefix for each run."""

    def __init__(
        self,
        ledger: Ledger,
        store: EvidenceStore,
        pipeline: str | None = None,
        archive: bool = True,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._pipeline = pipeline
        self._archive = archive

    def write_pending(self, now: int) -> int:
        """Write the evidence of this pipeline that is missing; return for how many blocks and resolutions."""
        written = 0
        for pending, database in self._pending(self._ledger.pending_evidence):
            group = _limited(self._blocks(pending[:_BLOCKS_AT_ONCE]))
            written += len(group) if self._write(group, now, database) else 0
        source = EvidenceSource(self._ledger)
        for pending, database in self._pending(self._ledger.pending_resolutions):
            chosen = self._resolutions(source, pending[:_RESOLUTIONS_AT_ONCE])
            group = _limited(chosen)
            written += len(group) if self._write(group, now, database, resolutions=True) else 0
        return written

    def _pending(self, ask: Callable[[str | None], list[int]]) -> Iterator[tuple[list[int], str]]:
        """Yield what is missing until nothing is, each time with the database that says so."""
        while True:
            database = self._ledger.database()
            pending = ask(self._pipeline)
            if not pending:
                return
            yield pending, database

    def _blocks(
        self, block_ids: Sequence[int]
    ) -> Iterator[tuple[int, DeliveryRows, pa.Table | None]]:
        source = EvidenceSource(self._ledger)
        for rows in source.of_blocks(block_ids):
            yield rows.block.block_id, rows, _needed(source, rows)

    def _resolutions(
        self, source: EvidenceSource, resolution_ids: Sequence[int]
    ) -> Iterator[tuple[int, DeliveryRows, pa.Table | None]]:
        chosen = source.of_resolutions(resolution_ids)
        for number, rows in zip(resolution_ids, chosen, strict=True):
            needed = self._archive and rows.admits
            yield number, rows, _needed(source, rows) if needed else None

    def _write(self, group: _Group, now: int, database: str, *, resolutions: bool = False) -> bool:
        numbers = list(group)
        files = [
            put_file(
                self._store,
                path_of(run, kind, numbers, resolutions=resolutions),
                kind,
                run,
                pa.concat_tables(tables),
            )
            for (run, kind), tables in sorted(self._tables(group).items())
        ]
        crash_point("evidence.written")
        blocks, later = ([], numbers) if resolutions else (numbers, [])
        recorded = self._ledger.record_evidence(blocks, files, now, later, database)
        crash_point("evidence.recorded")
        if not recorded:
            self._set_unlisted_aside(files)
        return recorded

    def _tables(self, group: _Group) -> dict[tuple[str, str], list[pa.Table]]:
        found: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        positions = EvidenceSource(self._ledger).positions
        for rows, deliveries in group.values():
            for run in rows.runs:
                for kind in rows.kinds:
                    if rows.count(kind, run) and (kind != ARCHIVE or self._archive):
                        found[run, kind].append(rows.make(kind, run, positions, deliveries))
        return found

    def _set_unlisted_aside(self, files: Sequence[EvidenceFile]) -> None:
        """Set aside what another writer was faster with, in another grouping: what is not listed is no evidence."""
        listed = {file.path for file in self._ledger.evidence_files()}
        for file in files:
            if file.path not in listed:
                set_aside(self._store, file.path)


def _needed(source: EvidenceSource, rows: DeliveryRows) -> pa.Table:
    deliveries = source.deliveries(rows.block.block_id)
    if deliveries is None:
        raise IntegrityError(
            f"The journal of block {rows.block.block_id} is gone, and with it the bytes its evidence needs.",
            "restore the ledger from a backup",
        )
    return deliveries


def _limited(chosen: Iterable[tuple[int, DeliveryRows, pa.Table | None]]) -> _Group:
    """Return the first of these, at least one, up to about as many bytes of deliveries as a file may hold."""
    found: _Group = {}
    size = 0
    for number, rows, deliveries in chosen:
        size += deliveries.nbytes if deliveries is not None else 0
        if found and size > _BYTES_AT_ONCE:
            break
        found[number] = rows, deliveries
    return found
