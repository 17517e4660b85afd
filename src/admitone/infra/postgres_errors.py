"""What PostgreSQL's errors mean for a caller: try again, mend a setting, or mend the server.

Nothing here quotes a URL, so that no password gets into a message.
"""

from __future__ import annotations

from typing import Final

import psycopg

from admitone.core.errors import (
    AdmitoneError,
    ConfigurationError,
    IntegrityError,
    ServiceUnreachable,
)

_TRY_AGAIN: Final = frozenset(
    {
        "25006",  # read only: connected to a standby, as during a failover
        "25P03",  # ended for being idle in a transaction: this process was suspended
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # a lock was not granted in time
        "57P01",  # shut down by an administrator, or this connection was ended by a successor of ours
        "57P02",  # another backend crashed
        "57P03",  # starting up or shutting down
        "57P05",  # ended for being idle
    }
)
_NEEDS_ANOTHER_CONNECTION: Final = frozenset({"25006"})

# A refused connection carries no SQLSTATE, only text.
_REFUSED_FOR_GOOD: Final = {
    "password authentication failed": "check the user and password in the URL",
    "no password supplied": "give a password in the URL, in PGPASSWORD or in a passfile",
    "no pg_hba.conf entry": "let pg_hba.conf admit this user from this address",
    "does not exist": "create the database and the role first",
    "is not permitted to log in": "give the role LOGIN",
    "permission denied for database": "grant the role CONNECT",
    "server does not support SSL": "enable TLS on the server or set sslmode",
    "certificate verify failed": "check sslrootcert and the server's certificate",
    "invalid sslmode value": "use one of libpq's sslmode values",
    "invalid port number": "check the port in the URL",
    "invalid command-line argument": "check the options in the URL",
    "unrecognized configuration parameter": "check the options in the URL",
}
_NO_CONNECTION_LEFT: Final = ("too many clients", "too many connections", "connection slots")

_UNABLE: Final = {
    "53100": (
        "its disk is full",
        "free space on the database server; nothing half done was kept, run again",
    ),
    "53200": ("it is out of memory", "give the server memory or lower its settings"),
    "53300": ("it has no connection left", "raise max_connections or run fewer workers"),
    "53400": ("a limit of its configuration was reached", "raise it on the server"),
    "57014": (
        "a statement took longer than statement_timeout",
        "look for what slows the server down, or set statement_timeout in the URL's options",
    ),
    "55P03": (
        "a lock was not granted in time",
        "look for a suspended or stuck admitone process that holds it, and end it",
    ),
    "40P01": ("transactions kept blocking each other", "run fewer workers, or try again"),
    "40001": ("transactions kept getting in each other's way", "run fewer workers, or try again"),
    "58030": ("it cannot read or write its files", "check the server's disk and its log"),
    "25006": ("it only reads", "name the primary, or add target_session_attrs=read-write"),
}


_COMPARE: Final = "keep the ledger as it is and compare it with the log"
_RESTORE: Final = (
    "something that admitone had made there was dropped: stop everything that uses it and restore it from a backup, or"
    " begin anew with an empty one; a ledger then catches up with its log by admitone reconcile --restored"
)
_DROPPED: Final = frozenset(
    {
        "42703",  # a column that is not there
        "42883",  # a function
        "42P01",  # a table
    }
)


def is_worth_retrying(error: psycopg.Error) -> bool:
    """Tell whether the same work may succeed a little later."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError) and _mistake_in(error) is None
    return error.sqlstate in _TRY_AGAIN or error.sqlstate.startswith("08")


def needs_another_connection(error: psycopg.Error) -> bool:
    """Tell whether it can only succeed on a new connection."""
    return error.sqlstate in _NEEDS_ANOTHER_CONNECTION


def explained(error: psycopg.Error, where: str) -> Exception:
    """Return the error a caller can act on; an unforeseen one is returned as it came."""
    state, text = error.sqlstate, _text_of(error)
    if state is None:
        return _connection_problem(error, where, text)
    if state in _UNABLE:
        return _unable(state, where, text)
    if state in _TRY_AGAIN or state[:2] in ("08", "53", "58"):
        return _unreachable(where, text)
    if state in ("42501", "3F000", "28000", "28P01"):
        return ConfigurationError(f"{where} refuses: {text}.", "grant the role what it needs")
    if state in _DROPPED or state[:2] == "23" or state in ("XX001", "XX002"):
        remedy = _RESTORE if state in _DROPPED else _COMPARE
        return IntegrityError(f"{where} refuses: {text}.", remedy)
    return error


def _connection_problem(error: psycopg.Error, where: str, text: str) -> Exception:
    remedy = _mistake_in(error)
    if remedy is not None:
        return ConfigurationError(f"{where} refuses: {text}.", remedy)
    if any(words in text for words in _NO_CONNECTION_LEFT):
        return _unable("53300", where, text)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return _unreachable(where, text)
    return error


def _unable(state: str, where: str, text: str) -> AdmitoneError:
    problem, remedy = _UNABLE[state]
    return ServiceUnreachable(f"{where} failed: {problem} ({text}).", remedy)


def _unreachable(where: str, text: str) -> AdmitoneError:
    return ServiceUnreachable(
        f"{where} does not answer: {text}.", "check that it runs and that its URL is right"
    )


def _mistake_in(error: psycopg.Error) -> str | None:
    text = str(error)
    return next((remedy for words, remedy in _REFUSED_FOR_GOOD.items() if words in text), None)


def _text_of(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return " ".join(text.split()).rstrip(".")
