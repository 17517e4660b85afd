"""Keeps outlets up to date beside the counting, each at its own pace.

An outlet that does not answer is told about once and tried again, with growing pauses, until it does. Meanwhile the
counting goes on, and what the outlet lacks then is found out from the outlet itself.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from admitone.analytics.open import item_rules, open_sketch_reader
from admitone.analytics.publishing import publish
from admitone.core.errors import AdmitoneError
from admitone.results.open import open_outlets
from admitone.results.outlet import Outlet
from admitone.settings import Settings

_LOOK_EVERY_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 15.0
_SHARE_OF_TIME: Final = 4
"""Writing an outlet takes at most one part of so many and one: counting comes first."""

_log = logging.getLogger("admitone")


class Publisher:
    """One thread for all outlets, with a reader of its own."""

    def __init__(self, settings: Settings) -> None:
        self._reader = open_sketch_reader(settings)
        self._rules = item_rules(settings)
        self._lanes = [_Lane(outlet) for outlet in open_outlets(settings)]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)
        if self._lanes:
            self._thread.start()

    def close(self) -> None:
        """Write what is left, once, and stop."""
        self._closing.set()
        if self._lanes:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            for lane in self._lanes:
                if time.monotonic() >= lane.due:
                    self._publish(lane)
        for lane in self._lanes:
            self._publish(lane)
            lane.outlet.close()
        self._reader.close()

    def _publish(self, lane: _Lane) -> None:
        begun = time.monotonic()
        try:
            publish(self._reader, self._rules, lane.outlet)
        except AdmitoneError as error:
            lane.failed(f"{error.problem} Try: {error.remedy}")
        except Exception as error:
            lane.failed(f"{type(error).__name__}: {error}")
        else:
            lane.succeeded(time.monotonic() - begun)


class _Lane:
    """An outlet, and when it is its turn."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.due = time.monotonic()
        self._failures = 0

    def succeeded(self, seconds: float) -> None:
        """Plan the next turn, and tell that an outage is over."""
        if self._failures:
            _log.warning("Everything is in %s again.", self.outlet.label)
        self._failures = 0
        pause = max(self.outlet.interval_ms / 1_000, _SHARE_OF_TIME * seconds)
        self.due = time.monotonic() + pause

    def failed(self, problem: str) -> None:
        """Tell of an outage when it begins, and plan the next try."""
        if not self._failures:
            _log.warning("%s is not written to: %s Counting goes on.", self.outlet.label, problem)
        self._failures += 1
        self.due = time.monotonic() + min(2.0**self._failures / 4, _LONGEST_PAUSE_S)
