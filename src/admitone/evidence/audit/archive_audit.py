"""The archived envelopes of a run: who each event is and what it carries, computed again."""

from __future__ import annotations

import pyarrow as pa

from admitone.core.routing import Route
from admitone.core.wire import one_array
from admitone.evidence.audit.expected_records import Originals
from admitone.evidence.audit.identities import (
    Recomputed,
    keyed_sources,
    recomputed,
    recomputed_records,
)
from admitone.evidence.audit.once_audit import OnceAudit
from admitone.evidence.audit.run_on_log import RunOnLog
from admitone.evidence.evidence_rows import ARCHIVE, AdmittedRows, DeliveryRows
from admitone.ledger.port import LedgerReader


class ArchiveAudit:
    """Computes identities and payload hashes again, and hands on what follows from them."""

    def __init__(
        self, ledger: LedgerReader, routes: dict[str, Route], once: OnceAudit, log: RunOnLog | None
    ) -> None:
        self._keyed = keyed_sources(ledger)
        self._routes = routes
        self._once = once
        self._log = log

    def check(self, run_id: str, member: DeliveryRows, rows: pa.Table) -> int:
        """Look at the archived admissions of a block; return how many are others than the ledger says."""
        said = [column.combine_chunks() for column in member.hashes(ARCHIVE, run_id)]
        values, headers = (one_array(rows[name]) for name in ("value", "headers"))
        is_keyed = member.block.source in self._keyed
        found = (
            recomputed_records(member.classes(ARCHIVE, run_id), values, headers)
            if is_keyed
            else recomputed(run_id, values, headers)
        )
        self._hand_on(member.admitted(run_id), found, rows)
        return found.differing(*said)

    def _hand_on(self, admitted: AdmittedRows, found: Recomputed, rows: pa.Table) -> None:
        if len(admitted.ordinals) != rows.num_rows:
            return
        times = admitted.facts["event_time"].to_numpy()
        self._once.add(found.identities, times, admitted.block.block_id, admitted.ordinals)
        if self._log is None:
            return
        if "key" not in rows.column_names and any(self._keeps_record(t) for t in admitted.topics):
            # Archived before keys were: the record cannot be made again, and is only known by its place.
            return
        keys = rows["key"] if "key" in rows.column_names else pa.nulls(rows.num_rows, pa.binary())
        business_keys = [
            self._business_key(topic, envelope)
            for topic, envelope in zip(admitted.topics, found.envelopes, strict=True)
        ]
        values, headers = one_array(rows["value"]), one_array(rows["headers"])
        self._log.expect(admitted, Originals(one_array(keys), values, headers, business_keys))

    def _keeps_record(self, topic: str) -> bool:
        return topic in self._routes and self._routes[topic].keeps_record

    def _business_key(self, topic: str, envelope: object) -> str:
        route = self._routes.get(topic)
        if route is None or not isinstance(envelope, dict):
            return ""
        return route.business_key(envelope) or ""
