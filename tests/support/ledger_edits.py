"""Single edits of a ledger's tables, made behind its back and taken back again, on either database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pyarrow as pa

from admitone.ledger.columns import pack, unpack

Row = dict[str, Any]


class Edit(NamedTuple):
    """What is changed, and how it is made."""

    what: str
    make: Callable[[EditedLedger], None]


class EditedLedger:
    """The tables of a ledger, read and written as nobody should."""

    def __init__(self, url: str) -> None:
        self._sqlite = not url.startswith("postgres")
        self.db: Any
        if self._sqlite:
            self.db = sqlite3.connect(url, isolation_level=None)
            self.db.execute("PRAGMA ignore_check_constraints = ON")
            triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for (name,) in self.db.execute(triggers).fetchall():
                self.db.execute(f"DROP TRIGGER {name}")
        else:
            self.db = psycopg.connect(url, autocommit=True)
            for table in self.tables():
                self.db.execute(f'ALTER TABLE "{table}" DISABLE TRIGGER USER')

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of every table."""
        if self._sqlite:
            found = self.db.execute(
                "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c"
                " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%'"
            ).fetchall()
        else:
            found = self.db.execute(
                "SELECT table_name, column_name FROM information_schema.columns"
                " WHERE table_schema = current_schema() ORDER BY ordinal_position"
            ).fetchall()
        tables: dict[str, list[str]] = {}
        for table, column in found:
            tables.setdefault(table, []).append(column)
        return tables

    def rows(self, table: str) -> list[Row]:
        """Return every row of a table."""
        cursor = self.db.execute(f'SELECT * FROM "{table}"')  # noqa: S608
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return sorted(rows, key=lambda row: str(list(row.values())))

    def replace(self, table: str, rows: list[Row]) -> None:
        """Let a table hold these rows and nothing else."""
        self.db.execute("BEGIN")
        try:
            self._fill(table, rows)
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def _fill(self, table: str, rows: list[Row]) -> None:
        self.db.execute(f'DELETE FROM "{table}"')  # noqa: S608
        for row in rows:
            names = ", ".join(f'"{name}"' for name in row)
            mark = "?" if self._sqlite else "%s"
            own = "" if self._sqlite else "OVERRIDING SYSTEM VALUE "
            marks = ", ".join([mark] * len(row))
            self.db.execute(
                f'INSERT INTO "{table}" ({names}) {own}VALUES ({marks})',
                [self._stored(value) for value in row.values()],
            )

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def edited(self, table: str, rows: list[Row]) -> Iterator[None]:
        """Let a table hold other rows for a while."""
        before = self.rows(table)
        self.replace(table, rows)
        try:
            yield
        finally:
            self.replace(table, before)

    def _stored(self, value: Any) -> Any:
        if self._sqlite or not isinstance(value, dict | list):
            return value
        is_array = isinstance(value, list) and all(isinstance(each, int) for each in value)
        return value if is_array else psycopg.types.json.Jsonb(value)


PACKED = {
    ("facts", "facts"), ("verdicts", "verdicts"), ("verdicts", "bus"), ("resolution", "changes"),
    ("journal", "deliveries"),
}  # fmt: skip
"""Columns that hold tables of their own."""


def other_tables(value: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield tables that differ from a packed one in one cell, with the name of its column."""
    table = unpack(bytes(value))
    for index, field in enumerate(table.schema):
        cells = table.column(index).to_pylist()
        changed = _other_cell(cells[-1], field.type)
        if changed is None:
            continue
        column = pa.array([*cells[:-1], changed], field.type)
        yield field.name, pack(table.set_column(index, field, column))


def _other_cell(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind) or pa.types.is_timestamp(kind) or value is None:
        return None
    if isinstance(value, int):
        return value + 1 if value < 100 or not pa.types.is_uint8(kind) else value - 1
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
    return f"{value}x"


def another(value: Any, column: str) -> Any:  # noqa: PLR0911 - one kind after the other
    """Return another value of the same kind."""
    if value is None:
        return b"\x07" * 32 if column.endswith("hash") else 7
    if isinstance(value, bool):
        return not value
    if column == "closed":
        return 1 - value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, UUID):
        return UUID(int=value.int ^ 1)
    if isinstance(value, bytes | memoryview):
        data = bytearray(value)
        data[len(data) // 2] ^= 1
        return bytes(data)
    if isinstance(value, dict):
        return {**value, "other": 1}
    if isinstance(value, list):
        return [*value, 7] if all(isinstance(each, int) for each in value) else value[1:]
    if value in ("OPEN", "CLOSED", "RESOLVED"):
        return {"OPEN": "RESOLVED", "RESOLVED": "OPEN", "CLOSED": "OPEN"}[value]
    if value[:1] in "[{":
        return value.replace("1", "2") if "1" in value else "[7]"
    return f"{value}x"


__all__ = ["Edit", "EditedLedger", "Row", "another"]
