"""The oracle: what was right for every delivery, and exactly how often everything occurred.

One JSON file holds it all. The checks take the documents that the command line prints and return
one sentence per discrepancy; an empty list is agreement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from admitone.demo.traffic import checks
from admitone.demo.traffic.checks import Decision
from admitone.demo.traffic.generate import Delivery, GeneratorOptions
from admitone.demo.traffic.window_keys import window_key, window_span

VERSION = 1

Counts = dict[str, dict[int, dict[str, int]]]
Late = dict[str, dict[int, int]]


class TruthRecorder:
    """Watches deliveries go by and notes what must become of them."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._decisions: list[Decision] = []
        self._counts: defaultdict[str, defaultdict[int, defaultdict[str, int]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(int))
        )
        self._late: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))

    def record(self, delivery: Delivery) -> None:
        """Note one delivery, in the order of the lines."""
        self._decisions.append(delivery[1:5])
        for name in delivery.lists:
            if delivery.late:
                self._late[name][delivery.minute_ms] += 1
            else:
                self._counts[name][delivery.minute_ms][delivery.item] += 1

    def watch(self, deliveries: Iterable[Delivery]) -> Iterator[Delivery]:
        """Pass the deliveries on, noting each."""
        for delivery in deliveries:
            self.record(delivery)
            yield delivery

    def truth(self) -> Truth:
        """Return what is known so far."""
        counts = {
            name: {minute: dict(items) for minute, items in minutes.items()}
            for name, minutes in self._counts.items()
        }
        late = {name: dict(minutes) for name, minutes in self._late.items()}
        options = asdict(self._options) | {"end_ms": self._options.last_ms}
        return Truth(options, list(self._decisions), counts, late)

    def write(self, path: Path | str) -> None:
        """Write the truth to one JSON file."""
        self.truth().write(path)


class Truth:
    """The right decisions and the exact counts of one generated stream."""

    def __init__(
        self, options: dict[str, Any], decisions: list[Decision], counts: Counts, late: Late
    ) -> None:
        self.options = options
        self.run_id: str | None = options.get("run")
        self.decisions = decisions
        self.counts = counts
        self.late = late
        self.verdicts = Counter(verdict for _, _, verdict, _ in decisions)
        self.reasons = Counter(reason for *_, reason in decisions if reason is not None)

    @classmethod
    def load(cls, path: Path | str) -> Truth:
        """Read the truth that a recorder wrote."""
        document = orjson.loads(Path(path).read_bytes())
        if document.get("version") != VERSION:
            raise ValueError(f"{path} is truth of version {document.get('version')}, not {VERSION}")
        return cls(
            document["options"],
            [tuple(decision) for decision in document["decisions"]],
            {name: _by_minute(minutes) for name, minutes in document["counts"].items()},
            {name: _by_minute(minutes) for name, minutes in document["late"].items()},
        )

    def write(self, path: Path | str) -> None:
        """Write one JSON file that `load` reads."""
        document = {
            "version": VERSION,
            "options": self.options,
            "run_id": self.run_id,
            "deliveries": len(self.decisions),
            "verdicts": self.verdicts,
            "reasons": self.reasons,
            "decisions": self.decisions,
            "counts": self.counts,
            "late": self.late,
        }
        Path(path).write_bytes(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))

    @property
    def lists(self) -> list[str]:
        """The dimension lists that anything belongs to."""
        return sorted(self.counts.keys() | self.late.keys())

    def windows(self, dimension_list: str, size: str) -> list[str]:
        """Return the keys of this list's windows of a size (`minute`, `hour` ... `global`)."""
        minutes = {*self.counts.get(dimension_list, ()), *self.late.get(dimension_list, ())}
        return sorted({window_key(minute, size) for minute in minutes})

    def exact(self, window: str, dimension_list: str) -> tuple[dict[str, int], int, int]:
        """Return the window's true counts, their total, and what came too late to be counted."""
        start, end = window_span(window)
        counts: Counter[str] = Counter()
        for minute, items in self.counts.get(dimension_list, {}).items():
            if start <= minute < end:
                counts.update(items)
        late = sum(
            weight
            for minute, weight in self.late.get(dimension_list, {}).items()
            if start <= minute < end
        )
        return dict(counts), counts.total(), late

    def check_decisions(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Compare with the rows of `decisions --jsonl`, all of this stream's run and no others."""
        return checks.check_decisions(self.decisions, rows, self.run_id)

    def check_books(self, books: Mapping[str, Any]) -> list[str]:
        """Compare with `books --json`; without a run of its own the stream must be the only one."""
        return checks.check_books(self.verdicts, books, self.run_id)

    def check_top(self, answer: Mapping[str, Any]) -> list[str]:
        """Compare with `top --json`: exact totals, bounds that hold, no heavy item left out."""
        name = checks.list_name(answer)
        counts, _, late = self.exact(answer["window"], name)
        found = checks.check_top(counts, late, answer)
        return [f"{answer['window']} {name}: {problem}" for problem in found]


def _by_minute(minutes: dict[str, Any]) -> dict[int, Any]:
    return {int(minute): value for minute, value in minutes.items()}
