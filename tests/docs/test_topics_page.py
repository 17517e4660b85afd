"""The page about topics says what the code does: hash vectors, families, kinds of drift."""

from __future__ import annotations

import tomllib
from pathlib import Path

from admitone.core.contract import Kind
from admitone.core.routing import partition_of
from admitone.ops.init import Profile, template

PAGE = (Path(__file__).parents[2] / "docs/reference/topics.md").read_text()


def table(first: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table whose first column has this name."""
    lines = PAGE[PAGE.index(f"| {first} |") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return rows[0], rows[2:]


def test_the_hash_has_the_vectors_of_the_page() -> None:
    head, rows = table("key")
    counts = [int(name.removeprefix("of ")) for name in head[2:]]
    assert len(rows) >= 6
    for key, first_bytes, *partitions in rows:
        for count, partition in zip(counts, partitions, strict=True):
            assert partition_of(key.strip("`"), count) == int(partition)
            assert int(first_bytes.strip("`"), 16) % count == int(partition)


def test_the_families_are_those_that_init_writes() -> None:
    _, rows = table("family")
    written = {
        entry["family"]: entry["key_fields"]
        for entry in tomllib.loads(template(Profile.PRODUCTION))["topics"]
    }
    assert {row[0]: row[1].replace("`", "").split(", ") for row in rows} == written
    assert list(written) == ["traffic", "context", "control", "decision"]


def test_every_kind_of_drift_has_its_line() -> None:
    _, rows = table("kind")
    assert [row[0] for row in rows] == [str(kind) for kind in Kind]
