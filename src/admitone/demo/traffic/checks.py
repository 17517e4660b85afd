"""What the product printed against what is right; one sentence per discrepancy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from admitone.demo.traffic.malformed import NAMED_REASONS, NAMELESS_REASONS

Decision = tuple[str | None, str | None, str, str | None]
Row = Mapping[str, Any]


def check_decisions(
    decisions: Sequence[Decision], rows: Iterable[Row], run_id: str | None
) -> list[str]:
    """Compare every decision with the rows of `decisions --jsonl`."""
    rows = list(rows)
    expected = Counter(_spoken(verdict, reason) for _, _, verdict, reason in decisions)
    actual = Counter(_spoken(row["verdict"], row["reason"]) for row in rows)
    found = [
        f"decisions: {what} {actual[what]} times, expected {expected[what]}"
        for what in sorted(expected.keys() | actual.keys())
        if expected[what] != actual[what]
    ]
    return found + _check_each_event(decisions, rows) + _check_admissions(decisions, rows, run_id)


def check_books(verdicts: Counter[str], books: Row, run_id: str | None) -> list[str]:
    """Compare the sums with `books --json`."""
    runs = [run for run in books["runs"] if run_id in (None, run["run_id"])]
    if len(runs) != 1:
        return [f"books: {len(runs)} runs match {run_id or 'any'}, expected one"]
    run = runs[0]
    expected = {
        "deliveries": verdicts.total(),
        "admitted": verdicts["ADMITTED"],
        "duplicates": verdicts["DUPLICATE"],
        "replayed": 0,
        "quarantined": verdicts["QUARANTINED"],
        "ambiguous": 0,
        "in_flight": 0,
    }
    found = []
    for name, right in expected.items():
        if run[name] != right:
            found.append(f"books: {name} is {run[name]}, expected {right}")
        parts = sum(partition[name] for partition in run["partitions"])
        if parts != right:
            found.append(f"books: {name} over all partitions is {parts}, expected {right}")
    if run["balanced"] is not True:
        found.append("books: not balanced")
    return found


def check_top(counts: Mapping[str, int], late: int, answer: Row) -> list[str]:
    """Compare one window's true counts with `top --json`."""
    items = answer["items"]
    found = [
        f"{field} is {answer[field]}, expected {right}"
        for field, right in (("total", sum(counts.values())), ("late", late))
        if answer[field] != right
    ]
    if abs(answer["distinct"] - len(counts)) > max(3, len(counts) / 10):
        found.append(f"distinct is {answer['distinct']}, far from {len(counts)}")
    return found + _check_order(items) + _check_bounds(counts, items) + _missing(counts, answer)


def list_name(answer: Row) -> str:
    """Return the dimension list an answer speaks about, whichever way it spells its condition."""
    where = answer.get("where")
    if not where:
        return str(answer["dimension"])
    if isinstance(where, Mapping):
        where = "|".join(f"{attribute}={value}" for attribute, value in where.items())
    return f"{answer['dimension']}|{where}"


def _check_each_event(decisions: Sequence[Decision], rows: list[Row]) -> list[str]:
    expected = Counter(
        (event_id, verdict, reason)
        for event_id, _, verdict, reason in decisions
        if reason not in NAMELESS_REASONS
    )
    actual = Counter(
        (row["event_id"], row["verdict"], row["reason"])
        for row in rows
        if row["reason"] not in NAMELESS_REASONS
    )
    nameless = Counter({key[1:]: n for key, n in actual.items() if key[0] is None})
    found = []
    for key in expected.keys() | actual.keys():
        event_id, verdict, reason = key
        short = expected[key] - actual[key]
        if event_id is None or short == 0:
            continue
        if reason in NAMED_REASONS and 0 < short <= nameless[verdict, reason]:
            nameless[verdict, reason] -= short
            continue
        times = f"{actual[key]} times, expected {expected[key]}"
        found.append(f"event {event_id}: {_spoken(verdict, reason)} {times}")
    for (verdict, reason), n in nameless.items():
        if n > 0:
            found.append(f"{n} times {_spoken(verdict, reason)} without the event id it had")
    return sorted(found)


def _check_admissions(
    decisions: Sequence[Decision], rows: list[Row], run_id: str | None
) -> list[str]:
    """Each identity is admitted once, in this run, by the first delivery in its partition."""
    admitted: defaultdict[tuple[str | None, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        if row["verdict"] == "ADMITTED":
            admitted[row["event_class"], row["event_id"]].append(row)
    found = []
    for event_id, event_class, verdict, _ in decisions:
        times = len(admitted.get((event_class, event_id), ()))
        if verdict == "ADMITTED" and times != 1:
            found.append(f"event {event_id} of {event_class} admitted {times} times, not once")
    for (_, event_id), claims in admitted.items():
        run = claims[0].get("run_id")
        if run_id is not None and run != run_id:
            found.append(f"event {event_id} admitted in run {run!r}, not {run_id!r}")
    for row in rows:
        claims = admitted.get((row["event_class"], row["event_id"]), [])
        if claims and _comes_before(row.get("source"), claims[0].get("source")):
            found.append(f"event {row['event_id']}: an earlier delivery than the first was refused")
    return found


def _comes_before(one: Row | None, other: Row | None) -> bool:
    if not one or not other:
        return False
    same = all(one.get(name) == other.get(name) for name in ("producer_id", "partition"))
    return same and one["offset"] < other["offset"]


def _check_order(items: Sequence[Row]) -> list[str]:
    found = []
    if [item["rank"] for item in items] != list(range(1, len(items) + 1)):
        found.append("the ranks are not 1, 2, 3 and so on")
    estimates = [item["estimate"] for item in items]
    if estimates != sorted(estimates, reverse=True):
        found.append("items are not sorted by estimate")
    if len({item["item"] for item in items}) != len(items):
        found.append("an item is listed twice")
    return found


def _check_bounds(counts: Mapping[str, int], items: Sequence[Row]) -> list[str]:
    found = []
    for item in items:
        name, lower, upper = item["item"], item["lower"], item["upper"]
        true = counts.get(name, 0)
        if not lower <= true <= upper:
            found.append(f"{name!r} occurred {true} times, outside [{lower}, {upper}]")
        elif true == 0:
            found.append(f"{name!r} is listed and never occurred")
        if not lower <= item["estimate"] <= upper:
            found.append(f"{name!r} has an estimate outside its own bounds")
    return found


def _missing(counts: Mapping[str, int], answer: Row) -> list[str]:
    items = answer["items"]
    listed = {item["item"] for item in items}
    # A list that is not full has no excuse for leaving anything out.
    full = items and len(items) >= answer.get("k", len(items))
    floor = items[-1]["upper"] if full else 0
    return [
        f"{item!r} occurred {true} times and is missing; the last listed bound is {floor}"
        for item, true in counts.items()
        if true > floor and item not in listed
    ]


def _spoken(verdict: str, reason: str | None) -> str:
    return verdict if reason is None else f"{verdict} {reason}"
