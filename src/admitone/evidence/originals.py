"""What was delivered, byte for byte: from the journal while it is kept, then from the evidence files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.errors import IntegrityError
from admitone.evidence import open_evidence_store
from admitone.evidence.evidence_file import read_file
from admitone.evidence.evidence_rows import ARCHIVE, ORIGINAL_COLUMNS, QUARANTINE, SCHEMAS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.ledger.columns import unpack
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings


def open_deliveries(
    settings: Settings, ledger: LedgerReader
) -> Callable[[int, Sequence[int]], pa.Table]:
    """Return what reads quarantined deliveries, by block and ordinals, from the configured stores."""
    return partial(deliveries, ledger, open_evidence_store(settings))


def deliveries(
    ledger: LedgerReader, store: EvidenceStore, block_id: int, ordinals: Sequence[int]
) -> pa.Table:
    """Return key, value and headers of quarantined deliveries of a block, in the order asked for."""
    journal = ledger.journal(block_id)
    if journal is not None:
        return unpack(journal).select(ORIGINAL_COLUMNS).take(pa.array(ordinals, pa.int64()))
    facts, _, _ = ledger.columns(block_id)
    pieces = [
        rows.filter(pc.equal(rows["block"], block_id))
        for run in sorted(set(facts["run"].take(pa.array(ordinals, pa.int64())).to_pylist()))
        for rows in _files_with(ledger, store, run, QUARANTINE, block_id)
    ]
    found = pa.concat_tables([SCHEMAS[QUARANTINE].empty_table(), *pieces])
    places = {number: row for row, number in enumerate(found["ordinal"].to_pylist())}
    for ordinal in ordinals:
        if ordinal not in places:
            raise IntegrityError(
                f"The bytes of delivery {block_id}-{ordinal} are in no store any more.",
                "admitone verify shows which evidence is missing",
            )
    chosen = pa.array([places[ordinal] for ordinal in ordinals], pa.int64())
    return found.select(ORIGINAL_COLUMNS).take(chosen)


def original(
    ledger: LedgerReader, store: EvidenceStore, block_id: int, ordinal: int
) -> bytes | None:
    """Return one delivery's value; None when no store has it any more, as with old duplicates."""
    journal = ledger.journal(block_id)
    if journal is not None:
        value: bytes | None = unpack(journal)["value"][ordinal].as_py()
        return value
    facts, _, _ = ledger.columns(block_id)
    (block,) = ledger.blocks(ids=[block_id])
    offset = facts["offset"][ordinal].as_py()
    position = (*zip(("source_producer", "source_partition"), block.source, strict=True),)
    wanted = {
        QUARANTINE: (("block", block_id), ("ordinal", ordinal)),
        ARCHIVE: (*position, ("source_offset", offset)),
    }
    run = facts["run"][ordinal].as_py()
    for kind, conditions in wanted.items():
        for rows in _files_with(ledger, store, run, kind, block_id):
            hits = [pc.equal(rows[name], number) for name, number in conditions]
            found = rows.filter(pc.and_(pc.and_(hits[0], hits[1]), hits[-1]))
            if found.num_rows:
                value = found["value"][0].as_py()
                return value
    return None


def _files_with(
    ledger: LedgerReader, store: EvidenceStore, run: str, kind: str, block_id: int
) -> Iterator[pa.Table]:
    """Yield the files of a kind that were made from a block, or from what was decided about it later."""
    later = {resolution.resolution_id for resolution in ledger.resolutions([block_id])}
    for file in ledger.evidence_files(run):
        if file.kind == kind:
            blocks, resolutions = ledger.evidence_of(file.path)
            if block_id in blocks or later & set(resolutions):
                yield read_file(store, file)
