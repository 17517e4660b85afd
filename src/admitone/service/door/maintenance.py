"""What a service does besides deciding: it writes the evidence of what was decided, and drops what has expired."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from admitone.core.errors import AdmitoneError
from admitone.evidence import open_evidence_writer
from admitone.infra.clock import wall_clock
from admitone.ledger import open_ledger
from admitone.settings import Settings

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
        ledger = open_ledger(self._settings)
        evidence = open_evidence_writer(self._settings, ledger)
        # A ledger of an older version is brought up to date: what only reads it cannot do that.
        with suppress(AdmitoneError):
            ledger.runs()
        while True:
            self._woken.wait(self._settings.service.evidence_interval / 1_000)
            self._woken.clear()
            ending = self._closing
            try:
                if evidence.write_pending(wall_clock()):
                    kept = self._settings.evidence.journal_retention
                    ledger.expire_journal(wall_clock() - kept)
                    dedup = self._settings.dedup
                    ledger.expire_segments(dedup.retention, dedup.idle_after)
            except AdmitoneError as error:
                log.warning("evidence waits", extra={"code": error.code, "problem": error.problem})
            except OSError as error:
                log.warning("evidence waits", extra={"problem": str(error)})
            if ending:
                ledger.close()
                return
