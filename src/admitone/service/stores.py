"""The stores the service reads, opened for questions only."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

from admitone.analytics.answers import open_answers
from admitone.analytics.open import item_rules, open_sketch_reader
from admitone.analytics.port import KeptValues, SketchReader
from admitone.core.items import OTHER
from admitone.evidence.closure import gate_of
from admitone.evidence.open import open_store
from admitone.evidence.store import EvidenceStore
from admitone.ledger.books import books
from admitone.ledger.open import open_reader
from admitone.ledger.port import LedgerReader
from admitone.ops.lag import LagMeter
from admitone.ops.runner import running
from admitone.ops.status import status_document
from admitone.results.port import Answers
from admitone.settings import Settings
from admitone.transport.open import open_transport
from admitone.transport.port import Transport


class Stores:
    """Answers the questions that need more than one store."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opening = threading.Lock()
        self._measuring = threading.Lock()
        self._answers: Answers | None = None

    @cached_property
    def ledger(self) -> LedgerReader:
        """Return the ledger; each thread gets a connection of its own."""
        return open_reader(self.settings)

    @cached_property
    def evidence(self) -> EvidenceStore:
        """Return the evidence store."""
        return open_store(self.settings)

    @cached_property
    def transport(self) -> Transport:
        """Return the log, to compare it with what the ledger says."""
        return open_transport(self.settings)

    @cached_property
    def _meter(self) -> LagMeter:
        return LagMeter(self.settings)

    @cached_property
    def _sketches(self) -> SketchReader:
        return open_sketch_reader(self.settings)

    def answers(self) -> Answers:
        """Return the answers about heavy hitters, once something was counted."""
        with self._opening:
            if self._answers is None:
                self._answers = open_answers(self.settings)
            return self._answers

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a run's state, books and gate, each recounted now."""
        gate = gate_of(run_id, self.ledger, self.transport, self.settings)
        accounts = books(self.ledger, run_id)["runs"]
        return {
            "run_id": run_id,
            "state": self.ledger.runs()[run_id],
            "books": accounts[0] if accounts else None,
            **gate.document(),
        }

    def status(self) -> dict[str, Any]:
        """Return what runs and how far behind it is."""
        with self._measuring:
            lag = self._meter.measure()
        return status_document(
            running(self.settings),
            lag,
            self.ledger.runs(),
            running(self.settings, "running-dedup"),
        )

    def dimensions(self) -> list[dict[str, Any]]:
        """Return the lists there are: dimensions with their attributes and the values that have a list."""
        kept = self._sketches.kept_values() if self._counted() else {}
        found: dict[str, dict[str, Any]] = {}
        for rule in item_rules(self.settings):
            entry = found.setdefault(
                rule.dimension,
                {"dimension": rule.dimension, "item_type": rule.item_type, "attributes": {}},
            )
            for attribute in rule.group_by:
                values = kept.get((rule.dimension, attribute))
                entry["attributes"][attribute] = _lists_of(values) if values else []
        return list(found.values())

    def is_reachable(self) -> bool:
        """Ask the ledger and the log something cheap; what is wrong is raised."""
        self.ledger.runs()
        self.transport.describe([self.settings.transport.raw_topic])
        return True

    def _counted(self) -> bool:
        return self.settings.sqlite_path(self.settings.topk.store).exists()


def _lists_of(kept: KeptValues) -> list[str]:
    """Return the values that have a list of their own, and the one that all others share."""
    return [*sorted(kept.values), *([OTHER] if kept.closed else [])]
