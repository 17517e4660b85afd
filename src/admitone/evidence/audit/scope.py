"""Which deliveries of a run are looked at: all of them, or what was decided up to the marks of its closing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from admitone.evidence.audit.log_audit import Place
from admitone.evidence.audit.receipt_tree import FIRST_LEAF, LEAF
from admitone.ledger.model import NOTHING_DECIDED, Block, Source
from admitone.ledger.port import LedgerReader


@dataclass(frozen=True, slots=True)
class Scope:
    """A run, up to the marks of its closing where it is closed."""

    run_id: str
    marks: Mapping[Source, int] | None = None
    leaf: int = LEAF
    """The version of the leaves its root is made of."""
    ends: Mapping[Place, int] | None = None
    """Up to where the log was read when it was closed."""

    @classmethod
    def of(cls, run_id: str, ledger: LedgerReader) -> Scope:
        """Return what there is to look at of a run as it stands."""
        artifact = ledger.closure(run_id)
        if artifact is None:
            return cls(run_id)
        return cls(run_id, marks_of(artifact), leaf_of(artifact), ends_of(artifact))

    def holds(self, block: Block) -> bool:
        """Tell whether a block was decided before the closing; what comes after does not disturb it."""
        if self.marks is None:
            return True
        return block.last_offset <= self.marks.get(block.source, NOTHING_DECIDED)


def marks_of(artifact: bytes) -> dict[Source, int] | None:
    """Return the marks in an artifact; None where it is none."""
    try:
        marks: list[dict[str, Any]] = orjson.loads(artifact)["marks"]
        found = {Source(mark["producer_id"], mark["partition"]): mark["offset"] for mark in marks}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    numbers = {type(number) for source, offset in found.items() for number in (*source, offset)}
    return found if numbers <= {int} else None


def ends_of(artifact: bytes) -> dict[Place, int]:
    """Return up to where the log was read for an artifact; nothing where it does not say so."""
    try:
        return {
            Place(entry["topic"], entry["topic_id"], entry["partition"]): entry["last"] + 1
            for entry in orjson.loads(artifact)["log"]
        }
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return {}


def leaf_of(artifact: bytes) -> int:
    """Return the version of the leaves of an artifact's root."""
    try:
        leaf = orjson.loads(artifact).get("leaf", FIRST_LEAF)
    except (orjson.JSONDecodeError, AttributeError):
        return LEAF
    return FIRST_LEAF if leaf == FIRST_LEAF else LEAF
