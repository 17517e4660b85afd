"""Release: quarantined deliveries are delivered again, through a door of their own (EVD-7, EVD-8).

A released delivery is judged by the rules in force now. What they still refuse stays where it is; what passes gets a
new position at a producer of its own and goes through the same protocol as everything else, with its
original position in a header. The quarantined decision stands and gets a note of what was done.

A contradiction is released by an explicit choice: keep the first admission, or admit the other payload under
a new identity that names the old one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
from typing_extensions import TypedDict

from admitone.boundary.partition import OwnedPartition
from admitone.boundary.producers import release_door_of, release_source
from admitone.boundary.publish import Outgoing, origins_of
from admitone.boundary.read import ReadBlock, numbered
from admitone.core.decisions import REASON_CODES, VERDICT_CODES, Action, Reason, Verdict
from admitone.core.errors import AdmitoneError
from admitone.core.wire import Header, StreamMetadata, header_list, run_header
from admitone.ledger.model import RELEASE_DOOR, Block, Filter, Mark, Source, SourceInfo

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

Fetch = Callable[[int, list[int]], pa.Table]
"""Returns key, value and headers of deliveries of a block."""

_FINAL = frozenset({Reason.RUN_CLOSED, Reason.IDENTITY_RETRACTED})


class Choice(StrEnum):
    """What to do about a contradiction."""

    KEEP_FIRST = "keep-first"
    AS_NEW = "as-new"


@dataclass(frozen=True, slots=True)
class Signature:
    """Who does it, and why."""

    author: str
    reason: str


class ReleaseDocument(TypedDict):
    """What came of a release: how many by their new verdict, settled as they are, or still refused by reason."""

    released: dict[str, int]
    kept_first: int
    still_refused: dict[str, int]


@dataclass(slots=True)
class Report:
    """What came of a release."""

    released: Counter[Verdict] = field(default_factory=Counter)
    kept_first: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)
    """Still in quarantine, by the reason the rules in force give."""

    def add(self, other: Report) -> None:
        """Add what came of another release."""
        self.released += other.released
        self.kept_first += other.kept_first
        self.refused += other.refused

    def document(self) -> ReleaseDocument:
        """Return the report as the interface spells it."""
        return {
            "released": {str(verdict): count for verdict, count in sorted(self.released.items())},
            "kept_first": self.kept_first,
            "still_refused": {str(reason): count for reason, count in sorted(self.refused.items())},
        }


class _ReleaseDoor(OwnedPartition):
    """Delivers what was delivered before: it is judged by the stream time of the partition it first came from.

    Its keys say where it came from, so its replays are not filtered: each would be one.
    """

    def __init__(self, boundary: Boundary, source: Source, origin_stream_time: int | None) -> None:
        super().__init__(boundary, source, None, boundary.resolve_all(source, None))
        self._origin_stream_time = origin_stream_time

    def _judged_after(self) -> Mark:
        times = (self.mark.stream_time, self._origin_stream_time)
        known = [moment for moment in times if moment is not None]
        return replace(self.mark, stream_time=max(known, default=None))

    def _outgoing(self, block: ReadBlock, ordinals: np.ndarray) -> Outgoing:
        leaving = super()._outgoing(block, ordinals)
        return replace(leaving, origins=origins_of(leaving.records["headers"]))


@dataclass(frozen=True, slots=True)
class _Again:
    """One quarantined delivery on its way back."""

    block_id: int
    ordinal: int
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]]
    reason: Reason


def release(
    boundary: Boundary,
    fetch: Fetch,
    chosen: Mapping[int, Iterable[int]],
    signature: Signature,
    choice: Choice | None = None,
) -> Report:
    """Release those of the deliveries, given as ordinals by block, that this pipeline quarantined."""
    report = Report()
    store = boundary.options.store
    infos = {info.source: info for info in boundary.ledger.sources() if info.store == store}
    by_source: dict[Source, list[_Again]] = defaultdict(list)
    for block in boundary.ledger.blocks(ids=list(chosen)):
        if block.source in infos:
            ordinals = sorted(chosen[block.block_id])
            again = _prepare(boundary, fetch, block, ordinals, signature, choice, report)
            by_source[block.source] += again
    for source, deliveries in by_source.items():
        size = boundary.options.max_block
        for start in range(0, len(deliveries), size):
            piece = deliveries[start : start + size]
            _deliver(boundary, infos[source], piece, signature, report)
    return report


def _prepare(
    boundary: Boundary,
    fetch: Fetch,
    block: Block,
    ordinals: list[int],
    signature: Signature,
    choice: Choice | None,
    report: Report,
) -> list[_Again]:
    """Read the originals; settle what needs no delivery."""
    ((_, facts, verdicts, _),) = boundary.ledger.decided(Filter(record=(block.block_id, 0)))
    reasons = {ordinal: REASON_CODES[verdicts["reason"][ordinal].as_py()] for ordinal in ordinals}
    contradictions = [o for o in ordinals if reasons[o] is Reason.PAYLOAD_MISMATCH]
    if contradictions and choice is None:
        raise AdmitoneError(
            f"Delivery {block.block_id}-{contradictions[0]} contradicts an admission: releasing it needs a"
            " choice.",
            "--keep-first confirms the admission; --as-new admits the other payload under a new identity",
        )
    if contradictions and choice is Choice.KEEP_FIRST:
        report.kept_first += boundary.ledger.dispose(
            block.block_id, contradictions, Action.KEPT_FIRST, boundary.clock(),
            signature.author, signature.reason,
        )  # fmt: skip
        ordinals = [ordinal for ordinal in ordinals if ordinal not in set(contradictions)]
    report.refused.update(reasons[ordinal] for ordinal in ordinals if reasons[ordinal] in _FINAL)
    ordinals = [ordinal for ordinal in ordinals if reasons[ordinal] not in _FINAL]
    # A record that is written as it came is in a run of its pipeline, not of its own.
    keeps = any(route.keeps_record for route in boundary.options.rules.routes)
    found = []
    originals = fetch(block.block_id, ordinals).to_pylist() if ordinals else []
    for ordinal, original in zip(ordinals, originals, strict=True):
        fact = {name: facts[name][ordinal].as_py() for name in ("offset", "run", "event_id")}
        value = original["value"]
        if reasons[ordinal] is Reason.PAYLOAD_MISMATCH:
            identity = facts["identity"][ordinal].as_py()
            digest = facts["payload_hash"][ordinal].as_py()
            value = _under_new_identity(value, fact["event_id"], identity, digest)
        position = StreamMetadata(*block.source, fact["offset"])
        headers = _headers(original["headers"], position, None if keeps else fact["run"])
        found.append(
            _Again(block.block_id, ordinal, original["key"], value, headers, reasons[ordinal])
        )
    return found


def _under_new_identity(value: bytes, event_id: str, identity: bytes, digest: bytes) -> bytes:
    """Return an envelope with another event id, always the same one for this payload, that names the old."""
    envelope = orjson.loads(value)
    envelope["metadata"]["eventId"] = f"{event_id}~{digest.hex()[:16]}"
    envelope["metadata"]["corrects"] = {"eventId": event_id, "identity": identity.hex()}
    return orjson.dumps(envelope)


def _headers(
    headers: list[dict[str, Any]] | None, position: StreamMetadata, run: str | None
) -> list[dict[str, Any]]:
    """Return a delivery's headers with the position and, where one is given, the run it first had."""
    kept = [entry for entry in headers or [] if entry["key"] != Header.ORIGIN]
    if not any(entry["key"] == Header.RUN_ID for entry in kept):
        kept += run_header(run)
    return kept + header_list([(Header.ORIGIN, position.to_bytes())])


def _deliver(
    boundary: Boundary, info: SourceInfo, again: list[_Again], signature: Signature, report: Report
) -> None:
    door = _door(boundary, info)
    judged = door.read(_table(again, door.mark.offset + 1, boundary.clock()))
    codes = judged.facts["reason"].to_pylist()
    passed = [delivery for delivery, code in zip(again, codes, strict=True) if not code]
    report.refused.update(REASON_CODES[code] for code in codes if code)
    if not passed:
        return
    start = door.mark.offset + 1
    for admitted in door.admit(_table(passed, start, boundary.clock())):
        _, verdicts, _ = boundary.ledger.columns(admitted.block_id)
        report.released.update(VERDICT_CODES[code] for code in verdicts["verdict"].to_pylist())
    done: dict[int, dict[int, int]] = defaultdict(dict)
    for number, delivery in enumerate(passed, start):
        done[delivery.block_id][delivery.ordinal] = number
    for block_id, numbers in done.items():
        where = f"{door.source.producer_id}:{door.source.partition}:{min(numbers.values())}"
        boundary.ledger.dispose(
            block_id, list(numbers), Action.RELEASED, boundary.clock(), signature.author,
            f"{signature.reason} (delivered again from {where})",
        )  # fmt: skip


def _door(boundary: Boundary, info: SourceInfo) -> _ReleaseDoor:
    """Take over the door of released deliveries that belongs to a source partition."""
    source = info.source
    boundary.keep_rules()
    if info.door != RELEASE_DOOR:
        door = release_door_of(info.pipeline, info.topic, info.topic_id)
        source = release_source(info, boundary.transport.cluster)
        boundary.ledger.register_source(
            source, info.pipeline, door.topic, door.topic_id, RELEASE_DOOR, info.store
        )
    return _ReleaseDoor(boundary, source, info.mark.stream_time)


def _table(again: list[_Again], start: int, now: int) -> pa.Table:
    keys, values = [each.key for each in again], [each.value for each in again]
    return numbered(start, now, keys, values, [each.headers for each in again])
