"""Step 5, evidence: tables made from a decided block, or from what was decided about it later.

    receipts      every admission, and every publish whose fate was not known
    quarantine    every anomaly, with its original bytes and the first admission it refers to
    archive       the admitted envelopes themselves
    resolutions   what was decided later about a delivery, by whom and why

A block's evidence shows it as it was first decided, for good; what a resolution changes is evidence of its own.
Everything comes from the ledger's rows and, for the original bytes, from its journal; so a file can be
written again and holds the same rows.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from admitone.core.decisions import CODE_OF_VERDICT, REASON_CODES, VERDICT_CODES, Action, Verdict
from admitone.ledger.decision_rows import Positions
from admitone.ledger.model import Block, Resolution
from admitone.ledger.outcomes import Columns
from admitone.transport.port import HEADERS_TYPE

RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS = "receipts", "quarantine", "archive", "resolutions"
_ADMITTED = CODE_OF_VERDICT[Verdict.ADMITTED]
_QUARANTINED = CODE_OF_VERDICT[Verdict.QUARANTINED]
_AMBIGUOUS = CODE_OF_VERDICT[Verdict.AMBIGUOUS]
SHOWN = {
    RECEIPTS: (_ADMITTED, _AMBIGUOUS),
    QUARANTINE: (_QUARANTINED, _AMBIGUOUS),
    ARCHIVE: (_ADMITTED,),
    RESOLUTIONS: tuple(range(len(VERDICT_CODES))),
}
"""The verdicts whose deliveries a kind of evidence has a row for."""

_EVENT = [
    ("event_class", pa.string()),
    ("event_id", pa.string()),
    ("identity", pa.binary(32)),
    ("payload_hash", pa.binary(32)),
]
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
_ROW = [
    ("rules", pa.int32()),
    ("rules_hash", pa.binary(32)),
    ("block", pa.int64()),
    ("ordinal", pa.int32()),
]
SCHEMAS = {
    RECEIPTS: pa.schema(
        [
            *_EVENT,
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
            *_ROW,
        ]
    ),
    QUARANTINE: pa.schema(
        [
            *_EVENT,
            ("verdict", pa.string()),
            ("reason", pa.string()),
            *_POSITION,
            ("first_producer", pa.int64()),
            ("first_partition", pa.int32()),
            ("first_offset", pa.int64()),
            ("append_time", pa.int64()),
            ("decided_at", pa.int64()),
            *_ROW,
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", HEADERS_TYPE),
        ]
    ),
    ARCHIVE: pa.schema(
        [
            ("event_id", pa.string()),
            *_POSITION,
            *_BUS,
            ("stream_time", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", HEADERS_TYPE),
        ]
    ),
    RESOLUTIONS: pa.schema(
        [
            *_EVENT,
            ("action", pa.string()),
            ("verdict", pa.string()),
            ("reason", pa.string()),
            *_POSITION,
            *_BUS,
            ("offset_kind", pa.string()),
            ("at", pa.int64()),
            ("published_at", pa.int64()),
            ("author", pa.string()),
            ("explanation", pa.string()),
            ("cause", pa.int64()),
            ("resolution", pa.int64()),
            *_ROW,
        ]
    ),
}
ADDED_COLUMNS = {
    RECEIPTS: ("rules_hash",),
    QUARANTINE: ("rules_hash",),
    ARCHIVE: ("key",),
    RESOLUTIONS: ("rules_hash",),
}
"""What files of older versions do not have."""
ORIGINAL_COLUMNS = ("key", "value", "headers")
"""What a row has from the delivery itself and not from the ledger's columns."""
_FIRST_COLUMNS = ("first_producer", "first_partition", "first_offset")


class AdmittedRows(NamedTuple):
    """Admissions of one run that a block, or a resolution of it, placed on the log."""

    block: Block
    facts: pa.Table
    topics: list[str]
    bus_offsets: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    """Which of all admissions, of any run, each one is: late publishes are numbered by it."""
    action: Action | None
    """How a resolution found out; None where the block itself says so."""
    published_at: int | None


class DeliveryRows:
    """Deliveries of a block with what was decided about them, and the evidence that follows from it."""

    kinds: ClassVar[tuple[str, ...]]
    action: Action | None = None
    published_at: int | None = None

    def __init__(
        self,
        block: Block,
        facts: pa.Table,
        decided: pa.Table,
        bus_offset: pa.ChunkedArray | None,
        ordinals: np.ndarray,
        constants: dict[str, Any],
    ) -> None:
        self.block = block
        self._facts = facts
        self._ordinals = ordinals
        self._verdict = decided["verdict"].to_numpy()
        runs = facts["run"].combine_chunks()
        self._run_names = runs.dictionary.to_pylist()
        self._run_codes = np.asarray(runs.indices)
        route = facts["route"].combine_chunks()
        size = facts.num_rows
        self._constants = {
            "source_producer": block.source.producer_id,
            "source_partition": block.source.partition,
            "rules": block.rules,
            "rules_hash": block.rules_hash,
            "block": block.block_id,
            **constants,
        }
        self._columns: dict[str, Any] = {
            "event_class": facts["class"],
            "event_id": facts["event_id"],
            "identity": facts["identity"],
            "payload_hash": facts["payload_hash"],
            "published_hash": facts["payload_hash"],
            "verdict": _named(VERDICT_CODES, decided["verdict"]),
            "reason": _named(REASON_CODES, decided["reason"]),
            "source_offset": facts["offset"],
            "bus_topic": pa.array([d.topic for d in block.destinations], pa.string()).take(route),
            "bus_partition": facts["partition"],
            "bus_offset": pa.nulls(size, pa.int64()) if bus_offset is None else bus_offset,
            "offset_kind": pa.array([d.offset_kind for d in block.destinations], pa.string()).take(
                route
            ),
            "event_time": facts["event_time"],
            "stream_time": facts["stream_time"],
            "append_time": facts["append_time"],
            "ordinal": pa.array(ordinals, pa.int32()),
        }

    @property
    def runs(self) -> list[str]:
        """Return the runs of these deliveries."""
        return [self._run_names[code] for code in np.unique(self._run_codes).tolist()]

    def count(self, kind: str, run: str) -> int:
        """Return how many rows of a kind there are for a run."""
        return len(self._chosen(kind, run))

    def make(
        self, kind: str, run: str, positions: Positions, deliveries: pa.Table | None = None
    ) -> pa.Table:
        """Return the rows of a kind for a run; without the deliveries the original bytes are left out."""
        rows = self._chosen(kind, run)
        taken = pa.array(rows)
        made: dict[str, Any] = {}
        for field in SCHEMAS[kind]:
            if field.name in self._columns:
                made[field.name] = self._columns[field.name].take(taken)
            elif field.name in self._constants:
                value = pa.scalar(self._constants[field.name], field.type)
                made[field.name] = pa.repeat(value, len(rows))
        made |= self._referred(kind, rows, positions)
        if deliveries is not None:
            originals = pa.array(self._ordinals[rows])
            for name in ORIGINAL_COLUMNS:
                made[name] = deliveries[name].take(originals)
        fields = [field for field in SCHEMAS[kind] if field.name in made]
        return pa.table(
            [made[field.name].cast(field.type) for field in fields], schema=pa.schema(fields)
        )

    def admitted(self, run: str) -> AdmittedRows:
        """Return the admissions of a run that have a place on the log, in the order of their archive's rows."""
        admitted = self._verdict == _ADMITTED
        numbers = np.cumsum(admitted) - 1
        placed = np.asarray(self._columns["bus_offset"].is_valid())
        rows = self._chosen(ARCHIVE, run)
        rows = rows[placed[rows]]
        taken = pa.array(rows)
        return AdmittedRows(
            self.block,
            self._facts.take(taken),
            self._columns["bus_topic"].take(taken).to_pylist(),
            self._columns["bus_offset"].take(taken).to_numpy(),
            self._ordinals[rows],
            numbers[rows],
            self.action,
            self.published_at,
        )

    def hashes(self, kind: str, run: str) -> tuple[pa.Array, pa.Array]:
        """Return the identities and the payload hashes of the rows that `make` returns."""
        taken = pa.array(self._chosen(kind, run))
        return self._columns["identity"].take(taken), self._columns["payload_hash"].take(taken)

    def classes(self, kind: str, run: str) -> pa.Array:
        """Return the event classes of the rows that `make` returns."""
        return self._columns["event_class"].take(pa.array(self._chosen(kind, run)))

    def _chosen(self, kind: str, run: str) -> np.ndarray:
        if run not in self._run_names:
            return np.empty(0, dtype=np.int64)
        of_run = self._run_codes == self._run_names.index(run)
        return np.flatnonzero(np.isin(self._verdict, SHOWN[kind]) & of_run)

    def _referred(self, kind: str, rows: np.ndarray, positions: Positions) -> dict[str, pa.Array]:
        """Return columns about other deliveries that these refer to; most kinds have none."""
        return {}


class BlockRows(DeliveryRows):
    """A decided block, as it was first decided."""

    kinds = (RECEIPTS, QUARANTINE, ARCHIVE)

    def __init__(self, block: Block, columns: Columns) -> None:
        facts, verdicts, bus = columns
        self._verdicts = verdicts
        self.published_at = block.published_at
        super().__init__(
            block,
            facts,
            verdicts,
            None if bus is None else bus["bus_offset"],
            np.arange(facts.num_rows),
            {
                "published_at": block.published_at,
                "decided_at": block.decided_at,
            },
        )

    def _referred(self, kind: str, rows: np.ndarray, positions: Positions) -> dict[str, pa.Array]:
        if kind != QUARANTINE:
            return {}
        chosen = self._verdicts.select(["first_block", "first_ordinal"]).take(pa.array(rows))
        firsts = [
            (None, None, None) if block is None else positions.of(block, ordinal)
            for block, ordinal in zip(
                chosen["first_block"].to_pylist(), chosen["first_ordinal"].to_pylist(), strict=True
            )
        ]
        return {
            name: pa.array([first[index] for first in firsts], SCHEMAS[QUARANTINE].field(name).type)
            for index, name in enumerate(_FIRST_COLUMNS)
        }


class ResolutionRows(DeliveryRows):
    """What a resolution says about deliveries of a block: a row each, and a receipt for what it admits."""

    kinds = (RESOLUTIONS, RECEIPTS, ARCHIVE)

    def __init__(self, resolution: Resolution, block: Block, columns: Columns) -> None:
        ordinals = resolution.changes["ordinal"].to_numpy()
        self.action, self.published_at = resolution.action, resolution.published_at
        super().__init__(
            block,
            columns[0].take(pa.array(ordinals)),
            resolution.changes,
            resolution.changes["bus_offset"],
            ordinals,
            {
                "action": str(resolution.action),
                "at": resolution.at,
                "decided_at": resolution.at,
                "published_at": resolution.published_at,
                "author": resolution.author,
                "explanation": resolution.reason,
                "cause": resolution.cause,
                "resolution": resolution.resolution_id,
            },
        )

    @property
    def admits(self) -> bool:
        """Tell whether it admits anything, so that the envelopes are archived now."""
        return bool((self._verdict == _ADMITTED).any())


def _named(names: tuple[str | None, ...], codes: pa.ChunkedArray) -> pa.Array:
    texts = pa.array([None if name is None else str(name) for name in names], pa.string())
    return texts.take(codes.combine_chunks())
