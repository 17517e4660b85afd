"""The stores of a home folder, as the command line and the service ask them."""

from __future__ import annotations

import threading
from functools import cached_property

from admitone.analytics import open_sketch_reader
from admitone.evidence import open_evidence_store
from admitone.ledger import open_ledger, open_ledger_reader
from admitone.ops.lag import Lag, LagMeter
from admitone.results import open_answers
from admitone.settings import Settings
from admitone.transport import open_transport


class Stores:
    """Each is opened where it is first asked, for questions only: what an operator changes goes another way.

    Threads may share them.
    """

    ledger = cached_property(lambda self: open_ledger_reader(self.settings))
    writing_ledger = cached_property(lambda self: open_ledger(self.settings))
    """For the actions of an operator, the only ones that write here."""
    evidence = cached_property(lambda self: open_evidence_store(self.settings))
    transport = cached_property(lambda self: open_transport(self.settings))
    sketches = cached_property(lambda self: open_sketch_reader(self.settings))
    answers = cached_property(lambda self: open_answers(self.settings))
    _meter = cached_property(lambda self: LagMeter(self.settings))

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._measuring = threading.Lock()

    def lag(self) -> Lag:
        """Measure how far behind the queries are."""
        with self._measuring:
            return self._meter.measure()
