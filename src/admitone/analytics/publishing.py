"""From what changed in the sketches to those who keep answers for others: Redis, the history.

What an outlet lacks is what changed since the point it says it has reached, and the windows that became complete
since. One that was emptied has reached nothing, so it gets everything. Nothing here can hold up or spoil the counting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from admitone.analytics.folding import is_complete
from admitone.analytics.known import Context, FromSketches, complete_in, point_of
from admitone.analytics.port import Clock, SketchReader
from admitone.core.items import ItemRule
from admitone.core.windows import GLOBAL, Window
from admitone.results.outlet import ItemResult, Outlet, Point

_LISTS_AT_ONCE = 64


def publish(reader: SketchReader, rules: Sequence[ItemRule], outlet: Outlet) -> int:
    """Bring an outlet up to the store's present revision; return how many lists were written."""
    while (written := _publish(reader, rules, outlet)) is None:
        continue
    return written


def _publish(reader: SketchReader, rules: Sequence[ItemRule], outlet: Outlet) -> int | None:
    """Return how many lists were written, or None when the outlet was emptied meanwhile."""
    with reader.snapshot():
        context = Context(reader.state(), rules)
        state = context.state
        now, before = point_of(state), outlet.reached()
        if now is None or before == now:
            return 0
        # The first dimension of a type tells what its items amount to.
        items_of = set({rule.item_type: rule.dimension for rule in reversed(rules)}.values())
        whole, lacking = _lacking(reader, context, before)
        written = 0
        for name, windows in lacking.items():
            wanted = sorted(w for w in windows if outlet.wants(w, complete_in(w, state), now))
            listed: set[str] = set()
            for some in _chunks(context.known(reader, wanted, name)):
                lists = [known.result() for known in some]
                outlet.write(lists, ())
                listed.update(entry.item for result in lists for entry in result.items)
                written += len(lists)
            if outlet.wants_items and name in items_of and GLOBAL in windows:
                outlet.write((), list(_items(reader, context, name, wanted, listed)))
        return written if outlet.finish(now, reader.windows() if whole else ()) else None


def _lacking(
    reader: SketchReader, context: Context, before: Point | None
) -> tuple[bool, Mapping[str, Collection[Window]]]:
    """Return whether an outlet lacks everything, and the windows of each list that it lacks."""
    state = context.state
    if before is None:
        before = Point(-1, -1, 0, 0)
    whole, lists = reader.changes(before.generation, before.revision)
    if whole:
        return True, lists
    found = {name: set(windows) for name, windows in lists.items()}
    clock = Clock(before.frontier, before.newest)
    for window in reader.windows():
        if complete_in(window, state) and not is_complete(window, clock, state.parameters.lateness):
            for name in reader.lists_in(window):
                found.setdefault(name, set()).add(window)
    return False, found


def _items(
    reader: SketchReader, context: Context, name: str, windows: Iterable[Window], listed: set[str]
) -> Iterator[ItemResult]:
    """Yield what listed items amount to over all time, and in which of these minutes they are first and last."""
    seen: dict[str, tuple[int, int]] = {}
    minutes = [window for window in windows if window.kind == "minute"]
    for known in context.known(reader, minutes, name):
        start = known.window.start_ms
        for item, _ in known.sketch.summary.entries():
            if item in listed:
                first, last = seen.get(item, (start, start))
                seen[item] = (min(first, start), max(last, start))
    item_type = context.item_type(name)
    assert item_type is not None
    for everything in context.known(reader, [GLOBAL], name):
        for item in sorted(listed):
            lower, upper = everything.bounds(item)
            first_seen, last_seen = seen.get(item, (None, None))
            yield ItemResult(
                item_type, item, name, upper, lower, upper, first_seen, last_seen, context.fence
            )


def _chunks(known: Iterator[FromSketches]) -> Iterator[list[FromSketches]]:
    while some := list(islice(known, _LISTS_AT_ONCE)):
        yield some
