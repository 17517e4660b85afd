"""What an admission must look like on the log: made again from the ledger's columns and the archived envelope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from admitone.core.decisions import Action
from admitone.core.routing import Route
from admitone.core.wire import Header, admitted_headers, encode, header_column
from admitone.evidence.audit.log_audit import Place
from admitone.evidence.audit.record_digests import Longs, named_records, whole_records
from admitone.evidence.evidence_rows import AdmittedRows
from admitone.ledger.model import RELEASE_DOOR, Destination, Late
from admitone.ledger.port import LedgerReader
from admitone.transport.headers import after_headers, listed


class Originals(NamedTuple):
    """What admissions were delivered with, line by line, and what their events are routed by."""

    keys: pa.Array
    values: pa.Array
    headers: pa.Array
    business_keys: Sequence[str]


class ExpectedRecords:
    """Makes the records of admissions again."""

    def __init__(self, ledger: LedgerReader, routes: Sequence[Route]) -> None:
        self._ledger = ledger
        self._routes = {route.topic: route for route in routes}
        infos = ledger.sources()
        self._releases = {info.source for info in infos if info.door == RELEASE_DOOR}

    def places(self, admitted: AdmittedRows) -> Iterator[tuple[Place, np.ndarray]]:
        """Yield each partition that admissions went to, and which of them did."""
        ids = {place.topic: place.topic_id for place in self._destinations(admitted)}
        topics = np.array(admitted.topics, dtype=object)
        partitions = admitted.facts["partition"].to_numpy()
        pairs = sorted(set(zip(admitted.topics, partitions.tolist(), strict=True)))
        for topic, partition in pairs:
            lines = np.flatnonzero((topics == topic) & (partitions == partition))
            yield Place(topic, ids.get(topic, ""), partition), lines

    def digests(self, admitted: AdmittedRows, originals: Originals | None) -> Longs:
        """Return the numbers of the records; without the originals of what the ledger says of them."""
        found = np.empty((len(admitted.topics), 3), dtype=np.uint64)
        topics = np.array(admitted.topics, dtype=object)
        for topic in sorted(set(admitted.topics)):
            lines = np.flatnonzero(topics == topic)
            found[lines] = self._of_topic(admitted, originals, topic, lines)
        return found

    def _of_topic(
        self, admitted: AdmittedRows, originals: Originals | None, topic: str, lines: np.ndarray
    ) -> Longs:
        taken = pa.array(lines)
        facts, block = admitted.facts.take(taken), admitted.block
        plan = self._plan(admitted)
        positions = encode(*self._keyed(admitted, plan, lines))
        extra = {}
        if plan is not None:
            extra[Header.ORIGIN] = encode(*block.source, facts["offset"].to_numpy())
        elif block.source in self._releases and originals is not None:
            _, extra[Header.ORIGIN] = header_column(originals.headers.take(taken), Header.ORIGIN)
        if originals is None:
            headers = admitted_headers(facts, _empty(len(lines)), block.rules, 0, 0, extra)
            return named_records(positions, _listed(positions, positions, headers)["headers"])
        route, key = self._routes.get(topic), positions
        chosen = [originals.business_keys[line] for line in lines.tolist()]
        business_keys = pa.array(chosen, pa.string())
        if route is not None and (route.business_keyed or route.keeps_record):
            extra[Header.POSITION] = positions
            key = originals.keys.take(taken) if route.keeps_record else business_keys.cast(pa.binary())  # fmt: skip
        said = admitted_headers(
            facts, business_keys, block.rules, block.claimed_at, block.block_id, extra
        )
        values = originals.values.take(taken)
        records = _listed(key, values, said)
        if route is not None and route.keeps_record:
            came = pa.chunked_array([originals.headers.take(taken)])
            records = after_headers(came, records)
        return whole_records(key, values, records["headers"])

    def _keyed(
        self, admitted: AdmittedRows, plan: Late | None, lines: np.ndarray
    ) -> tuple[int, int, np.ndarray]:
        """Return the source and the numbers that the records have in their positions."""
        if plan is None:
            return *admitted.block.source, admitted.facts["offset"].to_numpy()[lines]
        return *plan.source, plan.first + admitted.numbers[lines]

    def _plan(self, admitted: AdmittedRows) -> Late | None:
        late = admitted.action is Action.PUBLISHED_LATE
        return self._ledger.late(admitted.block.block_id) if late else None

    def _destinations(self, admitted: AdmittedRows) -> tuple[Destination, ...]:
        plan = self._plan(admitted)
        return plan.destinations if plan is not None else admitted.block.destinations


def _empty(size: int) -> pa.Array:
    return pa.array([""] * size, pa.string())


def _listed(keys: pa.Array, values: pa.Array, headers: pa.StructArray) -> pa.Table:
    return listed(pa.table([keys, values, headers], names=["key", "value", "headers"]))
