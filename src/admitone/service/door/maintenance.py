"""What a service does besides deciding: it writes the evidence of what was decided, and drops what has expired."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

from admitone.boundary import open_boundary
from admitone.boundary.admission import Boundary
from admitone.boundary.ledger_age import must_know_its_log
from admitone.core.errors import AdmitoneError
from admitone.evidence import open_evidence_writer
from admitone.ledger import open_ledger_reader
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport import open_transport

log = logging.getLogger(__name__)


class Maintenance:
    """A thread that works at intervals, and when it is woken."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._woken = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="maintenance", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Do not wait for the interval to pass."""
        self._woken.set()

    def close(self) -> None:
        """Do the work once more, then end."""
        self._closing = True
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        reader = open_ledger_reader(self._settings)
        boundary: Boundary | None = None
        while True:
            self._woken.wait(self._settings.service.evidence_interval / 1_000)
            self._woken.clear()
            ending = self._closing
            try:
                if self._is_due(reader):
                    boundary = boundary or self._open(reader)
                    evidence = open_evidence_writer(self._settings, boundary.ledger)
                    boundary.upkeep(evidence, self._settings.evidence.journal_retention)
            except AdmitoneError as error:
                log.warning("evidence waits", extra={"code": error.code, "problem": error.problem})
            except OSError as error:
                log.warning("evidence waits", extra={"problem": str(error)})
            if ending:
                reader.close()
                if boundary is not None:
                    boundary.close()
                return

    def _is_due(self, reader: LedgerReader) -> bool:
        """Tell whether evidence is pending; a ledger that is being read back is left alone."""
        name = self._settings.pipeline.name
        pending = reader.pending_evidence(name) or reader.pending_resolutions(name)
        return bool(pending) and not reader.reading_back()

    def _open(self, reader: LedgerReader) -> Boundary:
        with closing(open_transport(self._settings)) as transport:
            must_know_its_log(reader, transport, self._settings)
        return open_boundary(self._settings)
