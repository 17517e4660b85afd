"""Evidence that is missing or damaged, written again from what is still known (EVD-4).

    receipts, resolutions    from the ledger's rows, always
    quarantine, archive      from the ledger's rows and the journal, while it is kept; or from the damaged file
                             itself, where it still holds the very rows that were noted

What none of these gives is lost, and said to be; nothing is made up. A file that was written again has the rows
whose digest the ledger noted when it was first written.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import pyarrow as pa

from admitone.core.errors import IntegrityError, NotFound
from admitone.evidence.audit.file_audit import present_files, unlisted_files
from admitone.evidence.audit.run_audit import being_written, waiting_members
from admitone.evidence.evidence_file import from_parquet, to_parquet, written_bytes
from admitone.evidence.evidence_rows import ADDED_COLUMNS, ARCHIVE, QUARANTINE
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.set_aside import set_aside
from admitone.evidence.source import EvidenceSource
from admitone.ledger.columns import logical_digest
from admitone.ledger.model import EvidenceFile
from admitone.ledger.port import Ledger


@dataclass(slots=True)
class Repaired:
    """What was done, and what could not be."""

    rewritten: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    """Where files are now that the ledger does not know."""
    lost: list[str] = field(default_factory=list)


def repair_run(run_id: str, ledger: Ledger, store: EvidenceStore) -> Repaired:
    """Write every missing or damaged file of a run again; set aside what writers of ours left behind."""
    done = Repaired()
    present = present_files(run_id, store)
    pending = waiting_members(ledger)
    for file in ledger.evidence_files(run_id):
        if isinstance(written_bytes(store, file), bytes):
            continue
        try:
            rewrite(file, ledger, store)
        except IntegrityError as error:
            done.lost.append(error.problem)
        else:
            done.rewritten.append(file.path)
    leftovers, _ = unlisted_files(run_id, present, ledger)
    for path in leftovers:
        if not being_written(path, pending):
            done.set_aside += filter(None, [set_aside(store, path)])
    return done


def rewrite(file: EvidenceFile, ledger: Ledger, store: EvidenceStore) -> EvidenceFile:
    """Write one file again with the rows it had, and note its new checksum; raise where they are lost."""
    rows = _rows_again(file, ledger)
    if rows is None:
        rows = _rows_within(file, store)
    if rows is None:
        raise IntegrityError(
            f"Evidence file {file.path} is lost: its {file.rows} rows need original bytes that the journal no"
            " longer keeps.",
            "restore the file from a backup of the evidence store",
        )
    if logical_digest(rows) != file.digest:
        # As a file of an older version has them.
        rows = rows.drop_columns(
            [n for n in ADDED_COLUMNS.get(file.kind, ()) if n in rows.column_names]
        )
    if logical_digest(rows) != file.digest:
        raise IntegrityError(
            f"Evidence file {file.path} cannot be written again: the ledger gives other rows than it noted.",
            "restore the ledger and the file from a backup",
        )
    data = to_parquet(rows)
    again = replace(file, checksum=hashlib.sha256(data).digest())
    store.write(file.path, data)
    ledger.replace_evidence(again)
    return again


def _rows_again(file: EvidenceFile, ledger: Ledger) -> pa.Table | None:
    """Return a file's rows from the ledger; None when it no longer has the original bytes they need."""
    source = EvidenceSource(ledger)
    pieces = []
    for member in source.of_file(file):
        deliveries = None
        if file.kind in (QUARANTINE, ARCHIVE):
            deliveries = source.deliveries(member.block.block_id)
            if deliveries is None:
                return None
        pieces.append(member.make(file.kind, file.run_id, source.positions, deliveries))
    return pa.concat_tables(pieces) if pieces else None


def _rows_within(file: EvidenceFile, store: EvidenceStore) -> pa.Table | None:
    """Return the rows a damaged file still holds, if they are the very rows that were noted."""
    try:
        rows = from_parquet(store.read(file.path), file.kind)
    except (NotFound, ValueError, KeyError, OSError, pa.ArrowException):
        return None
    return rows if logical_digest(rows) == file.digest else None
