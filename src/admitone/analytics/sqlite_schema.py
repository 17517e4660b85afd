"""The tables of the sketches' SQLite file, as a list of forward migrations.

state              sketch:v1:…, space-saving:v1:… and meta:v1:… by key
windows            every stored window; for a minute, whether it is folded
marks              how far each partition of the admitted log is counted
sources            stream time and newest append time of each source partition
attributes, attribute_values   the values that have a list of their own
settings           revision, parameters in force
"""

from __future__ import annotations

import sqlite3
from typing import Final

from admitone.core.errors import ConfigurationError

MIGRATIONS: Final = (
    """
    CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE windows (
        key TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        start_ms INTEGER NOT NULL,
        end_ms INTEGER NOT NULL,
        folded INTEGER NOT NULL
    );
    CREATE INDEX windows_by_age ON windows (kind, end_ms);
    CREATE TABLE marks (
        topic_id TEXT NOT NULL,
        partition INTEGER NOT NULL,
        topic TEXT NOT NULL,
        offset INTEGER NOT NULL,
        counted INTEGER NOT NULL,
        re_read INTEGER NOT NULL,
        skipped INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)
    );
    CREATE TABLE sources (
        producer_id INTEGER NOT NULL,
        partition INTEGER NOT NULL,
        stream_time INTEGER NOT NULL,
        append_time INTEGER NOT NULL,
        PRIMARY KEY (producer_id, partition)
    );
    CREATE TABLE attributes (
        dimension TEXT NOT NULL,
        attribute TEXT NOT NULL,
        closed INTEGER NOT NULL,
        PRIMARY KEY (dimension, attribute)
    );
    CREATE TABLE attribute_values (
        dimension TEXT NOT NULL,
        attribute TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (dimension, attribute, value)
    );
    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    INSERT INTO settings VALUES ('revision', '0'), ('updated_at', '0');
    """,
)


def check_version(connection: sqlite3.Connection, place: str) -> int:
    """Return the file's version, or refuse one that a newer release wrote."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise ConfigurationError(
            f"{place} has version {version}, this release knows {len(MIGRATIONS)}.",
            "use the release that wrote it, or a newer one",
        )
    return int(version)


def migrate(connection: sqlite3.Connection, place: str) -> None:
    """Bring the file to this release's version."""
    if check_version(connection, place) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another process may have migrated while we waited for the lock.
        for number in range(check_version(connection, place), len(MIGRATIONS)):
            for statement in MIGRATIONS[number].split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
