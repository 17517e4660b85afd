"""Writes the evidence of decided blocks, many blocks to a file, and records that it is durable.

A file's name says which blocks it holds, so writing it again after a crash replaces it by the same rows.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from admitone.core.errors import IntegrityError
from admitone.evidence.rows import ARCHIVE, QUARANTINE, RECEIPTS, SCHEMAS, BlockEvidence
from admitone.faults import crash_point
from admitone.ledger.columns import logical_digest, unpack
from admitone.ledger.port import EvidenceFile, Ledger
from admitone.ledger.positions import Positions

_BLOCKS_AT_ONCE = 32
_BYTES_AT_ONCE = 256 << 20
_LONGEST_NAME = 160
_REPEATING = {
    "event_class", "verdict", "reason", "source_producer", "source_partition", "bus_topic",
    "bus_partition", "offset_kind", "published_at", "decided_at", "append_time", "rules", "block",
}  # fmt: skip
_SOUGHT = {"block", "ordinal", "source_partition", "source_offset"}


def run_folder(run_id: str) -> str:
    """Return the prefix of a run, safe for any run id; a long one is shortened and told apart by its hash."""
    quoted = quote(run_id, safe="").replace(".", "%2E")
    if len(quoted) > _LONGEST_NAME:
        # Quoting never puts two percent signs together, so this is nobody else's folder.
        quoted = f"{quoted[: _LONGEST_NAME // 2]}%%{hashlib.sha256(run_id.encode()).hexdigest()}"
    return f"runs/{quoted}"


class EvidenceWriter:
    """Turns what the ledger decided into files under a prefix for each run."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        pipeline: str | None = None,
        archive: bool = True,
    ) -> None:
        self._ledger = ledger
        self._folder = folder
        self._pipeline = pipeline
        self._archive = archive

    def write_pending(self, now: int) -> int:
        """Write the evidence of this pipeline's decided blocks that have none; return how many."""
        written = 0
        while pending := self._ledger.pending_evidence(self._pipeline):
            group = self._originals(pending[:_BLOCKS_AT_ONCE], _BYTES_AT_ONCE)
            written += len(group) if self._write(group, now) else 0
        return written

    def write(self, block_ids: list[int], now: int) -> bool:
        """Write the evidence of these blocks and record it, unless other files hold it already."""
        return self._write(self._originals(block_ids), now)

    def _originals(self, block_ids: list[int], limit: int | None = None) -> dict[int, pa.Table]:
        """Return what was delivered, block by block, up to about as many bytes as the limit."""
        found: dict[int, pa.Table] = {}
        size = 0
        for block_id in block_ids:
            journal = self._ledger.journal(block_id)
            if journal is None:
                raise IntegrityError(
                    f"The journal of block {block_id} is gone, and with it the bytes its evidence needs.",
                    "restore the ledger from a backup",
                )
            deliveries = unpack(journal)
            size += deliveries.nbytes
            if limit is not None and found and size > limit:
                break
            found[block_id] = deliveries
        return found

    def _write(self, originals: dict[int, pa.Table], now: int) -> bool:
        block_ids = list(originals)
        files = [
            self._write_file(run, kind, block_ids, pa.concat_tables(tables))
            for (run, kind), tables in sorted(self._tables(originals).items())
        ]
        crash_point("evidence.written")
        recorded = self._ledger.record_evidence(block_ids, files, now)
        crash_point("evidence.recorded")
        if not recorded:
            # Somebody else was faster with another grouping; what is not listed is no evidence.
            listed = {file.path for file in self._ledger.evidence_files()}
            for file in files:
                if file.path not in listed:
                    (self._folder / file.path).unlink(missing_ok=True)
        return recorded

    def _tables(self, originals: dict[int, pa.Table]) -> dict[tuple[str, str], list[pa.Table]]:
        found: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        blocks = {block.block_id: block for block in self._ledger.blocks()}
        positions = Positions(
            self._ledger, {number: block.source for number, block in blocks.items()}
        )
        for block_id, deliveries in originals.items():
            evidence = BlockEvidence(blocks[block_id], self._ledger.columns(block_id))
            for run in evidence.runs:
                found[run, RECEIPTS].append(evidence.receipts(run))
                found[run, QUARANTINE].append(evidence.quarantine(run, deliveries, positions))
                if self._archive:
                    found[run, ARCHIVE].append(evidence.archive(run, deliveries))
        return {key: tables for key, tables in found.items() if any(t.num_rows for t in tables)}

    def _write_file(
        self, run: str, kind: str, block_ids: list[int], rows: pa.Table
    ) -> EvidenceFile:
        members = ",".join(map(str, block_ids)).encode()
        name = f"{block_ids[0]:012d}-{hashlib.sha256(members).hexdigest()[:16]}.parquet"
        path = f"{run_folder(run)}/{kind}/{name}"
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}.partial")
        names = rows.column_names
        pq.write_table(
            rows,
            partial,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in names if name in _REPEATING],
            write_statistics=[name for name in names if name in _SOUGHT],
        )
        with partial.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").digest()
            os.fsync(file.fileno())
        partial.replace(target)
        descriptor = os.open(target.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return EvidenceFile(path, kind, run, rows.num_rows, logical_digest(rows), checksum)


def read_file(folder: Path, path: str, kind: str) -> pa.Table:
    """Return the rows of an evidence file."""
    return pq.ParquetFile(folder / path).read().cast(SCHEMAS[kind])
