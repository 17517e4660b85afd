"""The stores of a home folder, as the command line and the service ask them."""

from __future__ import annotations

import threading
from functools import cached_property

from admitone.analytics import open_sketch_reader
from admitone.analytics.port import SketchReader
from admitone.evidence import open_store
from admitone.evidence.store import EvidenceStore
from admitone.ledger import open_ledger, open_ledger_reader
from admitone.ledger.port import Ledger, LedgerReader
from admitone.ops.lag import Lag, LagMeter
from admitone.results import open_answers
from admitone.results.answers import Answers
from admitone.settings import Settings
from admitone.transport import open_transport
from admitone.transport.port import Transport


class Stores:
    """Each is opened where it is first asked, for questions only: what an operator changes goes another way.

    Threads may share them.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._measuring = threading.Lock()

    @cached_property
    def ledger(self) -> LedgerReader:
        """Return the ledger."""
        return open_ledger_reader(self.settings)

    @cached_property
    def writing_ledger(self) -> Ledger:
        """Return the ledger for the actions of an operator, the only ones that write here."""
        return open_ledger(self.settings)

    @cached_property
    def evidence(self) -> EvidenceStore:
        """Return the evidence store."""
        return open_store(self.settings)

    @cached_property
    def transport(self) -> Transport:
        """Return the log, to compare it with what the ledger says."""
        return open_transport(self.settings)

    @cached_property
    def sketches(self) -> SketchReader:
        """Return what was counted."""
        return open_sketch_reader(self.settings)

    @cached_property
    def answers(self) -> Answers:
        """Return the answers about heavy hitters."""
        return open_answers(self.settings)

    @cached_property
    def _meter(self) -> LagMeter:
        return LagMeter(self.settings)

    def lag(self) -> Lag:
        """Measure how far behind the queries are."""
        with self._measuring:
            return self._meter.measure()
