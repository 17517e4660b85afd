"""Single edits, deletions and additions of evidence, as somebody might make them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from admitone.evidence.evidence_file import from_parquet, to_parquet
from admitone.evidence.evidence_rows import ARCHIVE, QUARANTINE, RECEIPTS, RESOLUTIONS

Edit = Callable[[random.Random, Path, list[Path]], None]


def flip_a_bit(chance: random.Random, target: Path, _: list[Path]) -> None:
    data = bytearray(target.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    target.write_bytes(bytes(data))


def cut_off(chance: random.Random, target: Path, _: list[Path]) -> None:
    data = target.read_bytes()
    target.write_bytes(data[: chance.randrange(len(data))])


def append_bytes(chance: random.Random, target: Path, _: list[Path]) -> None:
    target.write_bytes(target.read_bytes() + chance.randbytes(chance.randint(1, 9)))


def insert_a_byte(chance: random.Random, target: Path, _: list[Path]) -> None:
    data = target.read_bytes()
    place = chance.randrange(len(data))
    target.write_bytes(data[:place] + chance.randbytes(1) + data[place:])


def put_another_file_in_its_place(chance: random.Random, target: Path, files: list[Path]) -> None:
    other = chance.choice([file for file in files if file.read_bytes() != target.read_bytes()])
    target.write_bytes(other.read_bytes())


def delete(_: random.Random, target: Path, __: list[Path]) -> None:
    target.unlink()


def rename(chance: random.Random, target: Path, _: list[Path]) -> None:
    target.rename(target.with_name(f"{chance.randrange(10**12):012d}-{'0' * 16}{target.suffix}"))


def add_a_copy_named_as_ours(chance: random.Random, target: Path, _: list[Path]) -> None:
    name = f"{chance.randrange(10**12):012d}-{chance.getrandbits(64):016x}.parquet"
    shutil.copy(target, target.with_name(name))


def add_a_copy_in_another_folder(chance: random.Random, target: Path, _: list[Path]) -> None:
    folder = target.parents[1 if target.suffix == ".parquet" else 0]
    kind = chance.choice([RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS, "more"])
    (folder / kind).mkdir(exist_ok=True)
    shutil.copy(target, folder / kind / f"{chance.getrandbits(32)}-{target.name}")


def add_something_else(chance: random.Random, target: Path, _: list[Path]) -> None:
    target.with_name(f"note{chance.getrandbits(32)}").write_bytes(b"")


BYTE_EDITS: list[Edit] = [
    flip_a_bit, cut_off, append_bytes, insert_a_byte, put_another_file_in_its_place, delete, rename,
    add_a_copy_named_as_ours, add_a_copy_in_another_folder, add_something_else,
]  # fmt: skip


def edit_a_cell(chance: random.Random, rows: pa.Table) -> pa.Table:
    name = chance.choice(rows.column_names)
    values = rows[name].to_pylist()
    place = chance.randrange(len(values))
    values[place] = _another(values[place], rows.schema.field(name).type)
    index = rows.column_names.index(name)
    return rows.set_column(
        index, rows.schema.field(name), pa.array(values, rows.schema.types[index])
    )


def _another(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        if pa.types.is_list(kind):
            return [{"key": "a", "value": b"b"}]
        return 7 if pa.types.is_integer(kind) else pa.scalar("x" * 32).cast(kind).as_py()
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [*value, {"key": "a", "value": None}]
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
    return f"{value} "


def delete_a_row(chance: random.Random, rows: pa.Table) -> pa.Table:
    place = chance.randrange(rows.num_rows)
    return pa.concat_tables([rows.slice(0, place), rows.slice(place + 1)])


def repeat_a_row(chance: random.Random, rows: pa.Table) -> pa.Table:
    place = chance.randrange(rows.num_rows)
    return pa.concat_tables([rows, rows.slice(place, 1)])


def swap_two_rows(chance: random.Random, rows: pa.Table) -> pa.Table:
    order = list(range(rows.num_rows))
    one, other = chance.sample(order, 2)
    order[one], order[other] = other, one
    return rows.take(order)


ROW_EDITS = [edit_a_cell, edit_a_cell, delete_a_row, repeat_a_row, swap_two_rows]


def edit_a_field(chance: random.Random, target: Path, _: list[Path]) -> None:
    document = json.loads(target.read_bytes())
    holder, key = chance.choice(list(_fields(document)))
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = value + chance.choice([-1, 1])
    elif isinstance(value, str):
        holder[key] = value[:-1] + ("0" if value[-1:] != "0" else "1")
    elif isinstance(value, list):
        holder[key] = [*value, 1]
    target.write_bytes(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def spell_differently(_: random.Random, target: Path, __: list[Path]) -> None:
    target.write_bytes(json.dumps(json.loads(target.read_bytes()), indent=1).encode())


def _fields(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        if isinstance(value[key], dict) or (isinstance(value[key], list) and value[key]):
            yield from _fields(value[key])
        else:
            yield value, key


def tamper(chance: random.Random, files: list[Path]) -> str:
    """Make one change to a run's folder; return what it was."""
    target = chance.choice(files)
    if target.suffix == ".json":
        edit = chance.choice([*BYTE_EDITS, edit_a_field, edit_a_field, spell_differently])
        edit(chance, target, files)
        return f"{edit.__name__} {target.name}"
    if chance.random() < 0.5:
        edit = chance.choice(BYTE_EDITS)
        edit(chance, target, files)
        return f"{edit.__name__} {target.parent.name}"
    rows = from_parquet(target.read_bytes(), target.parent.name)
    possible = ROW_EDITS if rows.num_rows > 1 else ROW_EDITS[:-1]
    change = chance.choice(possible)
    target.write_bytes(to_parquet(change(chance, rows)))
    return f"{change.__name__} {target.parent.name}"


LEDGER_EDITS = {
    "artifact": "UPDATE run SET artifact = CAST(replace(CAST(artifact AS TEXT), '\"rows\":', '\"rows\":1') AS BLOB)",
    "no artifact": "UPDATE run SET artifact = NULL",
    "a mark in the artifact": "UPDATE run SET artifact = CAST(replace(CAST(artifact AS TEXT), '\"offset\":', "
    "'\"offset\":-') AS BLOB)",
    "verdicts": "UPDATE verdicts SET verdicts = (SELECT verdicts FROM verdicts WHERE block_id = 2) WHERE block_id = 3",
    "facts": "UPDATE facts SET facts = (SELECT facts FROM facts WHERE block_id = 2) WHERE block_id = 3",
    "a resolution's author": "UPDATE resolution SET author = 'eve' WHERE resolution_id = 2",
    "a resolution": "DELETE FROM resolution WHERE resolution_id = 2",
    "a block": "DELETE FROM block WHERE block_id = 3",
    "a file": "DELETE FROM evidence WHERE kind = 'quarantine'",
    "a publish time": "UPDATE block SET published_at = published_at + 1 WHERE block_id = 2",
}
