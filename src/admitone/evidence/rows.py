"""Step 5, evidence: receipts, quarantine and archive as tables made from a decided block.

Everything comes from the block's row and, for the original bytes, from the journal; so a file can be written
again and holds the same rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from admitone.core.decisions import CODE_OF_VERDICT, REASON_CODES, VERDICT_CODES, Verdict
from admitone.ledger.port import Block
from admitone.ledger.positions import Positions
from admitone.transport.port import HEADERS_TYPE

RECEIPTS, QUARANTINE, ARCHIVE = "receipts", "quarantine", "archive"
_ADMITTED = CODE_OF_VERDICT[Verdict.ADMITTED]
_QUARANTINED = CODE_OF_VERDICT[Verdict.QUARANTINED]
_AMBIGUOUS = CODE_OF_VERDICT[Verdict.AMBIGUOUS]

_POSITION = [
    ("source_producer", pa.int64()),
    ("source_partition", pa.int32()),
    ("source_offset", pa.int64()),
]
_BUS = [
    ("bus_topic", pa.string()),
    ("bus_partition", pa.int32()),
    ("bus_offset", pa.int64()),
]
RECEIPT_SCHEMA = pa.schema(
    [
        ("event_class", pa.string()),
        ("event_id", pa.string()),
        ("identity", pa.binary(32)),
        ("payload_hash", pa.binary(32)),
        ("published_hash", pa.binary(32)),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        *_POSITION,
        *_BUS,
        ("offset_kind", pa.string()),
        ("event_time", pa.int64()),
        ("stream_time", pa.int64()),
        ("append_time", pa.int64()),
        ("published_at", pa.int64()),
        ("decided_at", pa.int64()),
        ("rules", pa.int32()),
        ("block", pa.int64()),
        ("ordinal", pa.int32()),
    ]
)
QUARANTINE_SCHEMA = pa.schema(
    [
        ("event_class", pa.string()),
        ("event_id", pa.string()),
        ("identity", pa.binary(32)),
        ("payload_hash", pa.binary(32)),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        *_POSITION,
        ("first_producer", pa.int64()),
        ("first_partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("append_time", pa.int64()),
        ("decided_at", pa.int64()),
        ("rules", pa.int32()),
        ("block", pa.int64()),
        ("ordinal", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
ARCHIVE_SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        *_POSITION,
        *_BUS,
        ("stream_time", pa.int64()),
        ("value", pa.binary()),
    ]
)
SCHEMAS = {RECEIPTS: RECEIPT_SCHEMA, QUARANTINE: QUARANTINE_SCHEMA, ARCHIVE: ARCHIVE_SCHEMA}


class BlockEvidence:
    """A decided block with its columns, and the evidence tables that follow from them."""

    def __init__(
        self,
        block: Block,
        columns: tuple[pa.Table, pa.Table, pa.Table | None],
    ) -> None:
        facts, verdicts, bus = columns
        route = facts["route"].combine_chunks()
        self._block = block
        self._verdict = verdicts["verdict"].to_numpy()
        runs = facts["run"].combine_chunks()
        self._run_names = runs.dictionary.to_pylist()
        self._run_codes = np.asarray(runs.indices)
        self._table = pa.table(
            {
                "event_class": facts["class"].cast(pa.string()),
                "event_id": facts["event_id"],
                "identity": facts["identity"],
                "payload_hash": facts["payload_hash"],
                "published_hash": facts["payload_hash"],
                "verdict": _named(VERDICT_CODES, verdicts["verdict"]),
                "reason": _named(REASON_CODES, verdicts["reason"]),
                "source_producer": self._constant(block.source.producer_id, pa.int64()),
                "source_partition": self._constant(block.source.partition, pa.int32()),
                "source_offset": facts["offset"],
                "bus_topic": pa.array([d.topic for d in block.destinations]).take(route),
                "bus_partition": facts["partition"],
                "bus_offset": self._constant(None, pa.int64())
                if bus is None
                else bus["bus_offset"],
                "offset_kind": pa.array([d.offset_kind for d in block.destinations]).take(route),
                "event_time": facts["event_time"],
                "stream_time": facts["stream_time"],
                "append_time": facts["append_time"],
                "published_at": self._constant(block.published_at, pa.int64()),
                "decided_at": self._constant(block.decided_at, pa.int64()),
                "rules": self._constant(block.rules, pa.int32()),
                "block": self._constant(block.block_id, pa.int64()),
                "ordinal": pa.array(np.arange(len(self._verdict), dtype=np.int32)),
                "first_block": verdicts["first_block"],
                "first_ordinal": verdicts["first_ordinal"],
            }
        )

    @property
    def runs(self) -> list[str]:
        """Return the runs this block has deliveries of."""
        return sorted(self._block.runs)

    def receipts(self, run: str) -> pa.Table:
        """Return a line for every admission, and for every publish whose fate is not known."""
        rows = self._rows(run, _ADMITTED, _AMBIGUOUS)
        return self._table.select(RECEIPT_SCHEMA.names).take(rows).cast(RECEIPT_SCHEMA)

    def quarantine(self, run: str, deliveries: pa.Table, positions: Positions) -> pa.Table:
        """Return the anomalies with their original bytes and the first admission they refer to."""
        rows = self._rows(run, _QUARANTINED, _AMBIGUOUS)
        table = self._table.take(rows)
        originals = deliveries.take(rows)
        firsts = [
            (None, None, None) if block is None else positions.of(block, ordinal)
            for block, ordinal in zip(
                table["first_block"].to_pylist(), table["first_ordinal"].to_pylist(), strict=True
            )
        ]
        for index, name in enumerate(("first_producer", "first_partition", "first_offset")):
            field = QUARANTINE_SCHEMA.field(name)
            table = table.append_column(
                field, pa.array([first[index] for first in firsts], field.type)
            )
        for name in ("key", "value", "headers"):
            table = table.append_column(QUARANTINE_SCHEMA.field(name), originals[name])
        return table.select(QUARANTINE_SCHEMA.names).cast(QUARANTINE_SCHEMA)

    def archive(self, run: str, deliveries: pa.Table) -> pa.Table:
        """Return the admitted envelopes themselves."""
        rows = self._rows(run, _ADMITTED)
        table = self._table.select([n for n in ARCHIVE_SCHEMA.names if n != "value"]).take(rows)
        values = deliveries["value"].take(rows)
        return table.append_column(ARCHIVE_SCHEMA.field("value"), values).cast(ARCHIVE_SCHEMA)

    def _rows(self, run: str, *verdicts: int) -> pa.Array:
        of_run = self._run_codes == self._run_names.index(run)
        return pa.array(np.flatnonzero(np.isin(self._verdict, verdicts) & of_run))

    def _constant(self, value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), len(self._verdict))


def _named(names: tuple[str | None, ...], codes: pa.ChunkedArray) -> pa.Array:
    texts = pa.array([None if name is None else str(name) for name in names])
    return texts.take(codes.combine_chunks())
