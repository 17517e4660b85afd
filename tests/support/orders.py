"""Records for dedup pipelines, and what becomes of them, worked out a second time with a few dictionaries."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

DAY_MS = 86_400_000
RETENTION_MS = 10 * DAY_MS
NEWEST_MS = 1_767_609_000_000
DEDUP = {"key": "field", "key_fields": ["order"], "time_field": "at", "retention": RETENTION_MS}
"""The settings that these records are made for."""


@dataclass(frozen=True)
class Order:
    """One record: its bytes and, where these are fit for it, its key and its time."""

    value: bytes
    key: int | None = None
    at: int = 0


def make_orders(
    count: int, seed: int, end_ms: int = NEWEST_MS, duplicates: float = 0.4
) -> list[list[Order]]:
    """Return records of two partitions: new ones, repeated ones with other contents, late ones and unreadable ones."""
    rng = random.Random(seed)
    partitions: list[list[Order]] = [[], []]
    used = 0
    for number in range(count):
        at = end_ms - (count - number) * 1_000
        place = partitions[rng.randrange(2)]
        if used and rng.random() < duplicates:
            place.append(_order(rng.randrange(used), number, at - rng.randrange(DAY_MS)))
        elif len(place) > 5 and rng.random() < 0.05:
            place.append(_order(used, number, at - RETENTION_MS - DAY_MS))
        elif len(place) > 5 and rng.random() < 0.03:
            place.append(Order(b'{"order": null, "number": %d}' % number))
        else:
            place.append(_order(used, number, at))
            used += 1
    return partitions


def _order(key: int, number: int, at: int) -> Order:
    document: dict[str, Any] = {"order": key, "number": number, "at": at}
    return Order(json.dumps(document).encode(), key, at)


@dataclass
class Expected:
    """What is right about a dedup pipeline that read some records."""

    first: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """By key, the records that may be the one that is written: the first of each partition that holds the key."""
    too_old: int = 0
    unreadable: int = 0
    deliveries: int = 0

    @classmethod
    def of(cls, partitions: Iterable[Sequence[Order]]) -> Expected:
        """Judge every partition by its own stream time."""
        found = cls()
        for orders in partitions:
            newest: int | None = None
            seen: set[int] = set()
            for order in orders:
                found.deliveries += 1
                if order.key is None:
                    found.unreadable += 1
                elif newest is not None and order.at <= newest - RETENTION_MS:
                    found.too_old += 1
                else:
                    newest = max(order.at, newest or order.at)
                    if order.key not in seen:
                        found.first[order.key].add(order.value)
                    seen.add(order.key)
        return found

    def problems(self, written: Iterable[bytes], decided: Iterable[dict[str, Any]]) -> list[str]:
        """Return where the destination, or the decisions, are not as expected."""
        problems = []
        times = Counter[int]()
        for value in written:
            key = json.loads(value)["order"]
            times[key] += 1
            if value not in self.first.get(key, ()):
                problems.append(f"{value!r} is written and is not the first of its key")
        problems += [f"order {key} is written {n} times" for key, n in times.items() if n > 1]
        problems += [f"order {key} is not written" for key in self.first.keys() - times.keys()]
        verdicts = Counter((row["verdict"], row["reason"]) for row in decided)
        wanted = Counter(
            {
                ("ADMITTED", None): len(self.first),
                ("QUARANTINED", "TOO_OLD"): self.too_old,
                ("QUARANTINED", "IDENTITY_INVALID"): self.unreadable,
            }
        )
        wanted["DUPLICATE", None] = self.deliveries - wanted.total()
        if +verdicts != +wanted:
            problems.append(f"decided {dict(verdicts)}, expected {dict(wanted)}")
        return problems
