"""The rules that decisions and counts were made under: shown by their hash, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from typing_extensions import TypedDict

from admitone.core.errors import NotFound
from admitone.governance.rules_in_force import rules_in_force
from admitone.ops.stores import Stores


class RulesDocument(TypedDict):
    """Rules under their hash, and whether they are in force now."""

    hash: str
    in_force: bool
    rules: dict[str, Any]


class RulesLine(TypedDict):
    """One hash, in a list of them."""

    hash: str
    in_force: bool
    kept: bool


class RulesList(TypedDict):
    """Every hash that rules are kept under, and that of those in force."""

    rules: list[RulesLine]


class RuleChange(TypedDict):
    """One value that differs between two documents of rules; None where one has no such value."""

    path: str
    before: Any
    after: Any


class RulesDifference(TypedDict):
    """What differs between two documents of rules."""

    before: str
    after: str
    changes: list[RuleChange]


def known(stores: Stores) -> RulesList:
    """Return every hash there is."""
    kept, now = _kept(stores), rules_in_force(stores.settings).hash
    return {
        "rules": [
            {"hash": each.hex(), "in_force": each == now, "kept": each in kept}
            for each in sorted({*kept, now})
        ]
    }


def show(stores: Stores, wanted: str | None = None) -> RulesDocument:
    """Return rules by the beginning of their hash; without one those in force now."""
    now = rules_in_force(stores.settings)
    documents = {**_kept(stores), now.hash: now.document}
    chosen = now.hash if wanted is None else _chosen(documents, wanted)
    return {
        "hash": chosen.hex(),
        "in_force": chosen == now.hash,
        "rules": orjson.loads(documents[chosen]),
    }


def diff(stores: Stores, before: str, after: str | None = None) -> RulesDifference:
    """Compare rules with others, or with those in force now."""
    one, other = show(stores, before), show(stores, after)
    changes = list(_changes(one["rules"], other["rules"], ""))
    return {"before": one["hash"], "after": other["hash"], "changes": changes}


def _kept(stores: Stores) -> dict[bytes, bytes]:
    """Return the rules that deliveries were decided by, and those that events were counted by."""
    return {**stores.ledger.rules(), **stores.sketches.rules()}


def _chosen(documents: dict[bytes, bytes], wanted: str) -> bytes:
    found = [each for each in documents if each.hex().startswith(wanted.lower())]
    if len(found) != 1:
        raise NotFound(
            f"{'No' if not found else 'More than one'} hash of rules begins with {wanted!r}.",
            "admitone rules show --all lists them",
        )
    return found[0]


def _changes(before: Any, after: Any, path: str) -> Iterator[RuleChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            where = f"{path}.{name}" if path else name
            yield from _changes(before.get(name), after.get(name), where)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            one, other = (each[index] if index < len(each) else None for each in (before, after))
            yield from _changes(one, other, f"{path}[{index}]")
    elif before != after:
        yield {"path": path, "before": before, "after": after}
