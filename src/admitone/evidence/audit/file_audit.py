"""Every evidence file of a run, read once and compared with what the ledger calls for, row by row.

A file must have the bytes whose checksum the ledger holds, the rows whose digest it holds, and exactly the rows that
its blocks or resolutions call for. What the ledger does not keep, the original bytes, is compared with
the journal while that is there; of an archived envelope identity and payload hash are computed again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pyarrow as pa

from admitone.evidence.audit.archive_audit import ArchiveAudit
from admitone.evidence.audit.decision_audit import BLOCK, RESOLUTION, DecisionAudit, Member
from admitone.evidence.audit.receipt_tree import ReceiptTree
from admitone.evidence.evidence_file import (
    closure_path,
    from_parquet,
    is_ours,
    path_of,
    run_folder,
    seal_path,
    written_bytes,
)
from admitone.evidence.evidence_rows import (
    ARCHIVE,
    ORIGINAL_COLUMNS,
    QUARANTINE,
    RECEIPTS,
    DeliveryRows,
)
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.source import EvidenceSource
from admitone.ledger.columns import logical_digest
from admitone.ledger.model import EvidenceFile
from admitone.ledger.port import LedgerReader


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with one file."""

    file: EvidenceFile
    what: str


@dataclass(slots=True)
class FileAudit:
    """What was found in the evidence store."""

    files: list[EvidenceFile] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    damaged: list[Damage] = field(default_factory=list)
    """Files whose bytes are not those that were written."""
    strange: list[Damage] = field(default_factory=list)
    """Files that are what was written, and are not what the ledger calls for."""
    envelopes: int = 0
    drifted: int = 0
    """Archived envelopes, and those that have another identity or payload hash than the ledger says."""
    holding: defaultdict[str, Counter[Member]] = field(default_factory=lambda: defaultdict(Counter))
    """In how many files of each kind a block's or a resolution's rows are."""
    later: set[str] = field(default_factory=set)
    """The files that hold only what was decided after the closing."""
    tree: ReceiptTree = field(default_factory=ReceiptTree)


def audit_files(
    run_id: str,
    ledger: LedgerReader,
    store: EvidenceStore,
    decisions: DecisionAudit,
    archived: ArchiveAudit,
    leaf: int,
) -> FileAudit:
    """Read and compare every file that the ledger lists for a run."""
    found, source = FileAudit(tree=ReceiptTree(leaf)), EvidenceSource(ledger)
    # The files of one group have one name and are made from the same blocks.
    for file in sorted(
        ledger.evidence_files(run_id), key=lambda file: file.path.rpartition("/")[2]
    ):
        found.files.append(file)
        found.rows[file.kind] += file.rows
        _note_members(found, file, ledger, decisions)
        if not _is_named_after_its_members(file, ledger):
            found.strange.append(Damage(file, "is listed with other blocks than it is named after"))
        rows = _intact(found, file, store)
        if rows is None:
            continue
        _compare_rows(found, file, rows, source, archived)
        if file.kind == RECEIPTS and file.path not in found.later:
            found.tree.add(rows)
    found.files.sort(key=lambda file: file.path)
    return found


def unlisted_files(
    run_id: str, present: list[str], ledger: LedgerReader
) -> tuple[list[str], list[str]]:
    """Return the files of a run's folder that the ledger does not list: named as ours, and others."""
    listed = {file.path for file in ledger.evidence_files(run_id)}
    listed |= {closure_path(run_id), seal_path(run_id)}
    unknown = [path for path in present if path not in listed]
    ours = [path for path in unknown if is_ours(run_id, path)]
    return ours, [path for path in unknown if path not in set(ours)]


def present_files(run_id: str, store: EvidenceStore) -> list[str]:
    """Return the files in a run's folder."""
    return store.list(run_folder(run_id))


def _note_members(
    found: FileAudit, file: EvidenceFile, ledger: LedgerReader, decisions: DecisionAudit
) -> None:
    """Note whose rows a file holds; a group may have members that have nothing of this run or kind."""
    blocks, resolutions = ledger.evidence_of(file.path)
    members: list[Member] = [(BLOCK, number) for number in blocks]
    members += [(RESOLUTION, number) for number in resolutions]
    here = [member for member in members if member in decisions.called_for[file.kind]]
    found.holding[file.kind].update(here)
    if here and decisions.later.issuperset(here):
        found.later.add(file.path)


def _is_named_after_its_members(file: EvidenceFile, ledger: LedgerReader) -> bool:
    blocks, resolutions = ledger.evidence_of(file.path)
    numbers = resolutions or blocks
    if not numbers or (blocks and resolutions):
        return False
    named = path_of(file.run_id, file.kind, numbers, resolutions=bool(resolutions))
    return named == file.path


def _intact(found: FileAudit, file: EvidenceFile, store: EvidenceStore) -> pa.Table | None:
    """Return the rows of a file that is what was written; bytes that are not are never decoded."""
    data = written_bytes(store, file)
    if isinstance(data, str):
        found.damaged.append(Damage(file, data))
        return None
    try:
        rows = from_parquet(data, file.kind)
    except (ValueError, KeyError, OSError, pa.ArrowException) as error:
        found.damaged.append(Damage(file, f"cannot be read: {error}"))
        return None
    if rows.num_rows != file.rows or logical_digest(rows) != file.digest:
        found.damaged.append(Damage(file, "holds other rows than the ledger noted"))
        return None
    return rows


def _compare_rows(
    found: FileAudit,
    file: EvidenceFile,
    rows: pa.Table,
    source: EvidenceSource,
    archived: ArchiveAudit,
) -> None:
    start = wrong = 0
    for member in source.of_file(file):
        size = member.count(file.kind, file.run_id)
        piece = rows.slice(start, size)
        start += size
        wrong += _differing_rows(file, member, piece, source)
        if file.kind == ARCHIVE and piece.num_rows == size:
            found.envelopes += size
            found.drifted += archived.check(file.run_id, member, piece)
    if start != rows.num_rows:
        wrong += abs(rows.num_rows - start)
    if wrong:
        found.strange.append(Damage(file, f"has {wrong} rows that the ledger does not call for"))


def _differing_rows(
    file: EvidenceFile, member: DeliveryRows, piece: pa.Table, source: EvidenceSource
) -> int:
    deliveries = None
    if file.kind in (QUARANTINE, ARCHIVE):
        deliveries = source.deliveries(member.block.block_id)
    expected = member.make(file.kind, file.run_id, source.positions, deliveries)
    if deliveries is None:
        piece = piece.select([name for name in piece.column_names if name not in ORIGINAL_COLUMNS])
    expected = expected.select(piece.column_names)
    if piece.equals(expected):
        return 0
    return sum(
        one != other for one, other in zip(piece.to_pylist(), expected.to_pylist(), strict=False)
    ) or abs(piece.num_rows - expected.num_rows)
