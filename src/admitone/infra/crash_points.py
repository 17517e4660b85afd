"""Named crash points: places where a test, or the demo, can end or suspend this process.

`ADMITONE_FAULT=name@n:action[:marker]` arms one of them: at the n-th passage of `name` the process
kills itself (`kill`) or suspends itself (`stop`), after leaving its pid in the marker file so that
the test that armed it knows. Forked workers inherit the setting; with a marker only the first process to
get there acts. Unarmed, a crash point costs one comparison.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Final

from admitone.core.errors import ConfigurationError

BOUNDARY_POINTS: Final = (
    "boundary.owned",
    "boundary.fenced",
    "boundary.read",
    "boundary.claiming",
    "boundary.claimed",
    "boundary.publishing",
    "boundary.published",
    "boundary.settling",
    "boundary.settled",
    "evidence.written",
    "evidence.recorded",
    "recovery.fenced",
    "recovery.looked",
    "recovery.resolved",
)
ANALYTICS_POINTS: Final = (
    "analytics.counted",
    "analytics.committing",
    "analytics.committed",
)
RECONCILE_POINTS: Final = (
    "reconcile.fenced",
    "reconcile.planned",
    "reconcile.published",
    "reconcile.resolved",
)
# Only where the broker refuses a record that is to be published late.
LATE_REFUSAL_POINTS: Final = ("reconcile.refused",)
RESTORE_POINTS: Final = (
    "restore.begun",
    "restore.adopted",
    "restore.aborted",
    "restore.found",
    "restore.registered",
    "restore.claimed",
    "restore.decided",
    "restore.planned",
    "restore.resolved",
    "restore.ended",
)
# Between the records and the request to commit them.
KAFKA_POINTS: Final = ("kafka.delivered",)
# Inside a transaction, where the write lock is held: a process suspended there holds up all others, so these
# are only for being killed at.
LEDGER_POINTS: Final = (
    "ledger.claim_written",
    "ledger.outcome_written",
)
RESOLUTION_POINTS: Final = ("ledger.resolution_written",)
STORE_POINTS: Final = ("analytics.written",)
# Where answers go out to Redis and to the history.
OUTLET_POINTS: Final = (
    "results.writing",
    "results.written",
    "history.writing",
    "history.written",
)
RECOMPUTE_POINTS: Final = (
    "recompute.counted",
    "recompute.compared",
    "recompute.switching",
    "recompute.switched",
)

_ALL_POINTS: Final = frozenset().union(
    BOUNDARY_POINTS, ANALYTICS_POINTS, RECONCILE_POINTS, LATE_REFUSAL_POINTS, RESTORE_POINTS, KAFKA_POINTS,
    LEDGER_POINTS, RESOLUTION_POINTS, STORE_POINTS, OUTLET_POINTS, RECOMPUTE_POINTS,
)  # fmt: skip

VARIABLE: Final = "ADMITONE_FAULT"


class _Armed:
    def __init__(self, spec: str) -> None:
        where, action, *marker = spec.split(":", 2)
        self.name, _, count = where.partition("@")
        if self.name not in _ALL_POINTS:
            raise ConfigurationError(
                f"There is no crash point {self.name!r}: {VARIABLE} would arm nothing.",
                f"one of {', '.join(sorted(_ALL_POINTS))}",
            )
        self.left = int(count or "1")
        self.signal = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[action]
        self.marker = marker[0] if marker else None

    def passed(self) -> None:
        self.left -= 1
        if self.left == 0 and self._first_to_mark():
            if self.signal == signal.SIGSTOP:
                # In a session of its own it is not woken by the kernel when its parents die.
                with contextlib.suppress(PermissionError):
                    os.setsid()
            # To this very thread: sent to the process, another thread may take the signal first while this
            # one runs on, into the transaction that it was to be stopped before.
            signal.pthread_kill(threading.get_ident(), self.signal)

    def _first_to_mark(self) -> bool:
        if self.marker is None:
            return True
        try:
            descriptor = os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(descriptor, str(os.getpid()).encode())
        os.close(descriptor)
        return True


_armed: _Armed | None = None


def arm(spec: str | None) -> None:
    """Arm a crash point in this process, or disarm it, as the variable does at its start."""
    global _armed  # noqa: PLW0603
    _armed = _Armed(spec) if spec else None


def crash_point(name: str) -> None:
    """Mark an arrow of the protocol where a fault test may strike."""
    if _armed is not None and _armed.name == name:
        _armed.passed()


arm(os.environ.get(VARIABLE))
