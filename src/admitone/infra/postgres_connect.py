"""Connections to PostgreSQL: what a URL may say, what every session is set to, and the schema's version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from admitone.core.errors import ConfigurationError

Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECTION_DEFAULTS = {
    "connect_timeout": "5",
    "application_name": "admitone",
    # A server that is gone without a word is noticed in 25 seconds, not in two hours.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
# What the URL's own options set comes after these and wins. A process that is suspended inside a transaction
# holds its locks until the server ends it: sooner than a successor loses its patience. Statements are many and small,
# or plain: compiling them (jit) costs more than they do.
_SESSION_DEFAULTS = (
    "-c statement_timeout=120s -c lock_timeout=10s -c idle_in_transaction_session_timeout=20s"
    " -c client_min_messages=warning -c jit=off"
)
# A server that waits for its standbys to apply a commit does more than we ask for, and keeps doing it.
_BEGIN_SESSION = (
    "SELECT backend_start, CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
    " THEN set_config('synchronous_commit', 'on', false) END"
    " FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)
_OWN_TABLES = """CREATE TABLE IF NOT EXISTS schema_version (
    component text PRIMARY KEY,
    version integer NOT NULL
);
CREATE TABLE IF NOT EXISTS last_transaction (
    connection uuid PRIMARY KEY,
    number bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20)"""


def parameters_of(url: str) -> dict[str, Any]:
    """Return what a URL says, completed with our defaults; a wrong one is never quoted."""
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = {"host": "@"}
    # An unescaped @ in a password moves the rest of it into the host, from where it would be quoted.
    if "@" in str(given.get("host", "")):
        raise ConfigurationError(
            "The PostgreSQL URL cannot be read.",
            "spell it postgresql://user:password@host:5432/database, special characters"
            " percent-encoded (%40 for @)",
        ) from None
    options = f"{_SESSION_DEFAULTS} {given.pop('options', '')}".strip()
    return {**_CONNECTION_DEFAULTS, **given, "options": options}


def place_of(parameters: dict[str, Any]) -> str:
    """Return where a database is, without any secret."""
    host, port = parameters.get("host", "localhost"), parameters.get("port", "5432")
    return f"PostgreSQL at {host}:{port}/{parameters.get('dbname', '')}"


def connect(parameters: dict[str, Any]) -> tuple[Connection, tuple[int, Any]]:
    """Open a connection that commits durably; return it with its backend's number and start."""
    db = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
    try:
        (backend_start, _) = one(db.execute(_BEGIN_SESSION))
    except BaseException:
        db.close()
        raise
    return db, (db.info.backend_pid, backend_start)


def is_made(db: Connection, component: str, known: int) -> bool:
    """Tell whether a component's tables are there; raise where a writer must bring them up to date first."""
    version = _version(db, component, known)
    if 0 < version < known:
        raise ConfigurationError(
            f"The {component} has version {version}, this program reads {known}.",
            "admitone run brings it up to date",
        )
    return version == known


def migrate(db: Connection, component: str, migrations: Sequence[str]) -> None:
    """Bring a component to the version this program knows; only forwards, one process at a time."""
    if _version(db, component, len(migrations)) == len(migrations):
        return
    with db.transaction():
        (path,) = one(db.execute("SHOW search_path"))
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"admitone {path}",))
        (schema,) = one(db.execute("SELECT current_schema()"))
        if schema is None:
            wanted = path.split(",")[0].strip().strip('"')
            db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(wanted)))
        db.execute(_OWN_TABLES)
        for script in migrations[_version(db, component, len(migrations)) :]:
            db.execute(script.encode())
        db.execute(
            "INSERT INTO schema_version VALUES (%s, %s) ON CONFLICT (component)"
            " DO UPDATE SET version = excluded.version",
            (component, len(migrations)),
        )


def _version(db: Connection, component: str, known: int) -> int:
    if one(db.execute("SELECT to_regclass('schema_version')"))[0] is None:
        return 0
    row = db.execute(
        "SELECT version FROM schema_version WHERE component = %s", (component,)
    ).fetchone()
    version = int(row[0]) if row else 0
    if version > known:
        raise ConfigurationError(
            f"The {component} has version {version}, this program knows up to {known}.",
            "use the version of admitone that wrote it, or a newer one",
        )
    return version


def one(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the row of a statement that has one."""
    row = cursor.fetchone()
    assert row is not None
    return row
