"""Admitted records from the archive, for when the log that carried them is gone.

An archive file holds the envelopes, the receipts of the same blocks hold times and places; their rows are in the same
order. A topic's incarnation is what the block's row noted when it was claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.analytics.admitted_records import HEADERS_READ
from admitone.core.decisions import Verdict
from admitone.core.errors import IntegrityError
from admitone.core.wire import encode
from admitone.evidence.evidence_file import read_file
from admitone.evidence.evidence_rows import ARCHIVE, RECEIPTS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.ledger.model import Block, EvidenceFile
from admitone.ledger.port import LedgerReader
from admitone.transport.port import HEADERS_TYPE, LOG_APPEND_TIME, RECORD_SCHEMA

_ROWS_AT_ONCE = 20_000


def archived_records(
    ledger: LedgerReader, store: EvidenceStore, topics: Collection[str]
) -> Iterator[pa.Table]:
    """Yield what was admitted to some topics, file by file, with the columns of a log and `topic_id`."""
    files = {file.path: file for file in ledger.evidence_files()}
    for file in files.values():
        if file.kind != RECEIPTS:
            continue
        receipts = read_file(store, file)
        receipts = receipts.filter(pc.equal(receipts["verdict"], str(Verdict.ADMITTED)))
        if not receipts.num_rows:
            continue
        archive = files.get(file.path.replace(f"/{RECEIPTS}/", f"/{ARCHIVE}/"))
        envelopes = _envelopes(store, file, archive, receipts)
        chosen = pc.is_in(receipts["bus_topic"], pa.array(list(topics), pa.string()))
        records = _records(
            receipts.filter(chosen), envelopes.filter(chosen), _blocks(ledger, receipts)
        )
        for first in range(0, records.num_rows, _ROWS_AT_ONCE):
            yield records.slice(first, _ROWS_AT_ONCE)


def _envelopes(
    store: EvidenceStore, file: EvidenceFile, archive: EvidenceFile | None, receipts: pa.Table
) -> pa.Table:
    if archive is None:
        raise IntegrityError(
            f"The events of {file.path} were not archived.",
            "recompute from the log while it has them; [evidence] archive = true keeps them from now on",
        )
    envelopes = read_file(store, archive)
    place = ["source_producer", "source_partition", "source_offset"]
    if not envelopes.select(place).equals(receipts.select(place)):
        raise IntegrityError(
            f"{archive.path} and {file.path} are not about the same events.",
            f"admitone verify {file.run_id}",
        )
    return envelopes


def _blocks(ledger: LedgerReader, receipts: pa.Table) -> Mapping[int, Block]:
    ids = receipts["block"].unique().to_pylist()
    return {block.block_id: block for block in ledger.blocks(ids=ids)}


def _records(receipts: pa.Table, envelopes: pa.Table, blocks: Mapping[int, Block]) -> pa.Table:
    size = receipts.num_rows
    incarnations = {
        (block.block_id, destination.topic): destination.topic_id
        for block in blocks.values()
        for destination in block.destinations
    }
    topic_ids = [
        incarnations.get(place, "")
        for place in zip(
            receipts["block"].to_pylist(), receipts["bus_topic"].to_pylist(), strict=True
        )
    ]
    columns = {
        "key": _keys(receipts),
        "value": envelopes["value"],
        "topic": receipts["bus_topic"],
        "partition": receipts["bus_partition"],
        "offset": receipts["bus_offset"],
        "timestamp": pc.multiply(receipts["published_at"], 1_000).cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), size),
        "headers": _headers(receipts, blocks),
    }
    made = pa.table([columns[field.name] for field in RECORD_SCHEMA], schema=RECORD_SCHEMA)
    return made.append_column("topic_id", pa.array(topic_ids, pa.string()))


def _keys(receipts: pa.Table) -> pa.Array:
    producers, partitions, offsets = (
        receipts[name].to_numpy()
        for name in ("source_producer", "source_partition", "source_offset")
    )
    keys = np.empty(len(offsets), dtype=object)
    sources = np.unique(np.stack([producers, partitions.astype(np.int64)], axis=1), axis=0)
    for producer, partition in sources.tolist():
        rows = (producers == producer) & (partitions == partition)
        keys[rows] = encode(producer, partition, offsets[rows]).to_pylist()
    return pa.array(keys, pa.binary())


def _headers(receipts: pa.Table, blocks: Mapping[int, Block]) -> pa.Array:
    columns = [receipts[name].to_pylist() for name in ("stream_time", "event_time", "block")]
    columns.insert(2, [blocks[number].claimed_at for number in columns[2]])
    return pa.array(
        [
            [
                (name, str(moment).encode())
                for name, moment in zip(HEADERS_READ, moments, strict=True)
            ]
            for moments in zip(*columns, strict=True)
        ],
        HEADERS_TYPE,
    )
