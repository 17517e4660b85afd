"""Which worker uses which slot of the synchronous door.

The lock is a courtesy, so that workers do not take each other's slots over; what keeps a slot safe is the ledger's
epoch and the log's fence. It goes with its process or its connection, however they end.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.ledger import is_postgres
from admitone.settings import Settings

if TYPE_CHECKING:
    from admitone.infra.postgres_connect import Connection

_SLOTS: Final = 256


class Slot(NamedTuple):
    """A slot number that no other worker uses."""

    number: int
    is_held: Callable[[], bool]
    """Tell whether it still is."""
    release: Callable[[], None]
    """Let another worker have it."""


def take_slot(settings: Settings) -> Slot:
    """Return the lowest slot that is free."""
    if is_postgres(settings):
        return _take_in_database(settings)
    folder = settings.sqlite_path(settings.ledger.url).parent / "door"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(_SLOTS):
        held = _lock(folder / f"slot-{number}")
        if held is not None:
            # The kernel keeps the lock as long as the process lives.
            return Slot(number, lambda: True, partial(os.close, held))
    raise _none_free()


def _take_in_database(settings: Settings) -> Slot:
    """Take a connection's advisory lock."""
    import psycopg

    from admitone.infra.postgres_connect import connect, parameters_of, place_of
    from admitone.infra.postgres_errors import explained

    parameters = parameters_of(settings.ledger.url)
    try:
        connection, _ = connect(parameters)
        for number in range(_SLOTS):
            key = _key(settings.pipeline.name, number)
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
            if row is not None and row[0]:
                return Slot(number, partial(_answers, connection), connection.close)
    except psycopg.Error as error:
        raise explained(error, place_of(parameters)) from error
    connection.close()
    raise _none_free()


def _answers(connection: Connection) -> bool:
    """Tell whether a connection is still there, and with it its lock."""
    import psycopg

    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def _key(pipeline: str, number: int) -> int:
    name = f"admitone door {number} of {pipeline}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big", signed=True)


def _lock(path: Path) -> int | None:
    """Lock a file: an SQLite ledger has only this machine's processes."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ServiceUnreachable(
            f"Cannot open {path}: {error.strerror}.", "make its folder writable"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _none_free() -> ConfigurationError:
    return ConfigurationError(
        f"All {_SLOTS} slots of the synchronous door are taken.", "stop services you do not need"
    )
