"""Copies of a ledger, as a nightly backup makes them, and how to put one back."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import psycopg
from psycopg import sql

from admitone.ledger.port import Ledger
from admitone.settings import Settings
from tests.servers.postgres import find_binaries


def copy_of(ledger: Ledger, settings: Settings, kept: Path) -> Callable[[], None]:
    """Copy a ledger; return what puts the copy in its place."""
    ledger.close()
    url = settings.ledger.url
    if url.startswith("sqlite:"):
        return _copied_file(settings.sqlite_path(url), kept)
    return _dumped_schema(url, kept)


def _copied_file(present: Path, kept: Path) -> Callable[[], None]:
    # What was committed last may still lie beside the file.
    with closing(sqlite3.connect(present)) as here, closing(sqlite3.connect(kept)) as there:
        here.backup(there)

    def restore() -> None:
        ready = present.with_name("put-back")
        shutil.copy(kept, ready)
        for beside in present.parent.glob(f"{present.name}-*"):
            beside.unlink()
        ready.replace(present)

    return restore


def _dumped_schema(url: str, kept: Path) -> Callable[[], None]:
    binaries = find_binaries()
    assert binaries is not None
    schema = unquote(url).rpartition("search_path=")[2]
    command = [binaries / "pg_dump", "--format=custom", f"--schema={schema}", f"--dbname={url}"]
    subprocess.run([*command, f"--file={kept}"], check=True)

    def restore() -> None:
        with psycopg.connect(url) as db:
            db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        subprocess.run([binaries / "pg_restore", f"--dbname={url}", kept], check=True)

    return restore
