"""Keeps outlets up to date while the pipeline counts, each at its own pace.

What an outlet lacks is what changed since the point it says it has reached, and the windows that became complete
since. One that was emptied has reached nothing, so it gets everything. When an outlet does not answer, the publisher
says so once and tries again, with growing pauses, until it does. Nothing here can hold up or spoil the counting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from admitone.analytics import item_rules, open_sketch_reader
from admitone.analytics.port import SketchReader, SketchStore
from admitone.analytics.store_state import Clock, Point
from admitone.core.errors import AdmitoneError, IntegrityError
from admitone.core.items import ItemRule
from admitone.core.windows import GLOBAL, Window
from admitone.infra.clock import pauses
from admitone.results import open_outlets
from admitone.results.list_view import ViewContext
from admitone.results.port import ItemResult, Outlet
from admitone.settings import Settings

_LOOK_EVERY_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0
_SHARE_OF_TIME: Final = 4
"""Writing an outlet takes at most one part of so many and one: counting comes first."""
_LISTS_AT_ONCE: Final = 64

_log = logging.getLogger("admitone")


class Publisher:
    """One thread for all outlets, with a reader of its own."""

    def __init__(self, settings: Settings) -> None:
        self._reader = open_sketch_reader(settings)
        self._rules = item_rules(settings)
        self._lanes = [_Lane(outlet) for outlet in open_outlets(settings)]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)
        if self._lanes:
            self._thread.start()

    def close(self) -> None:
        """Write what is left, once, and stop."""
        self._closing.set()
        if self._lanes:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            for lane in self._lanes:
                if time.monotonic() >= lane.due:
                    self._publish(lane)
        for lane in self._lanes:
            self._publish(lane)
            lane.outlet.close()
        self._reader.close()

    def _publish(self, lane: _Lane) -> None:
        begun = time.monotonic()
        try:
            publish(self._reader, self._rules, lane.outlet)
        except AdmitoneError as error:
            lane.failed(f"{error.problem} Try: {error.remedy}")
        except Exception as error:
            lane.failed(f"{type(error).__name__}: {error}")
        else:
            lane.succeeded(time.monotonic() - begun)


def begin_life(store: SketchStore, outlets: Iterable[Outlet], now: int) -> None:
    """Begin a new life of the store, beyond what its outlets were written from; one that is away says so later."""
    beyond = 0
    for outlet in outlets:
        with suppress(AdmitoneError):
            reached = outlet.reached()
            beyond = max(beyond, reached.generation if reached else 0)
        outlet.close()
    store.begin_life(now, beyond)


class _Lane:
    """An outlet, and when it is its turn."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.due = time.monotonic()
        self._pauses: Iterator[float] | None = None
        """How long to wait between tries, while it does not answer."""

    def succeeded(self, seconds: float) -> None:
        """Plan the next turn, and tell that an outage is over."""
        if self._pauses:
            _log.warning("Everything is in %s again.", self.outlet.label)
        self._pauses = None
        pause = max(self.outlet.interval_ms / 1_000, _SHARE_OF_TIME * seconds)
        self.due = time.monotonic() + pause

    def failed(self, problem: str) -> None:
        """Tell of an outage when it begins, and plan the next try."""
        if not self._pauses:
            self._pauses = pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            _log.warning("%s is not written to: %s Counting goes on.", self.outlet.label, problem)
        self.due = time.monotonic() + next(self._pauses)


def publish(reader: SketchReader, rules: Sequence[ItemRule], outlet: Outlet) -> int:
    """Bring an outlet up to the store's present revision; return how many lists were written."""
    while (written := _publish(reader, rules, outlet)) is None:
        continue
    return written


def _publish(reader: SketchReader, rules: Sequence[ItemRule], outlet: Outlet) -> int | None:
    """Return how many lists were written, or None when the outlet was emptied meanwhile."""
    with reader.snapshot():
        context = ViewContext(reader, rules)
        state = context.state
        now, before = state.point, outlet.reached()
        if now is None or before == now:
            return 0
        if before is not None and before.generation > now.generation:
            raise IntegrityError(
                f"{outlet.label} was written to from generation {before.generation} of the counts, this one is"
                f" {now.generation}: the counts were restored from an older copy.",
                "start the query that counts again: it begins a generation beyond it and writes everything",
            )
        # The first dimension of a type tells what its items amount to.
        items_of = set({rule.item_type: rule.dimension for rule in reversed(rules)}.values())
        whole, lacking = _lacking(reader, context, before)
        written = 0
        for name, windows in lacking.items():
            wanted = sorted(w for w in windows if outlet.wants(w, state.is_complete(w), now))
            listed: set[str] = set()
            known = context.known(wanted, name)
            while lists := [view.result() for view in islice(known, _LISTS_AT_ONCE)]:
                outlet.write(lists, ())
                listed.update(entry.item for result in lists for entry in result.items)
                written += len(lists)
            if outlet.wants_items and name in items_of and GLOBAL in windows:
                outlet.write((), list(_items(context, name, wanted, listed)))
        return written if outlet.finish(now, reader.windows() if whole else ()) else None


def _lacking(
    reader: SketchReader, context: ViewContext, before: Point | None
) -> tuple[bool, Mapping[str, Collection[Window]]]:
    """Return whether an outlet lacks everything, and the windows of each list that it lacks."""
    state = context.state
    before = before or Point(-1, -1, 0, 0)
    whole, lists = reader.changes(before.generation, before.revision)
    if whole:
        return True, lists
    found = {name: set(windows) for name, windows in lists.items()}
    clock = Clock(before.frontier, before.newest)
    for window in reader.windows():
        if state.is_complete(window) and not clock.completes(window, state.parameters.lateness):
            for name in reader.lists_in(window):
                found.setdefault(name, set()).add(window)
    return False, found


def _items(
    context: ViewContext, name: str, windows: Iterable[Window], listed: set[str]
) -> Iterator[ItemResult]:
    """Yield what listed items amount to over all time, and in which of these minutes they are first and last."""
    seen: dict[str, tuple[int, int]] = {}
    minutes = [window for window in windows if window.kind == "minute"]
    for known in context.known(minutes, name):
        start = known.window.start_ms
        for item, _ in known.sketch.summary.entries():
            if item in listed:
                first, last = seen.get(item, (start, start))
                seen[item] = (min(first, start), max(last, start))
    item_type = context.item_type(name)
    assert item_type is not None
    for everything in context.known([GLOBAL], name):
        for item in sorted(listed):
            lower, upper = everything.bounds(item)
            first_seen, last_seen = seen.get(item, (None, None))
            yield ItemResult(
                item_type, item, name, upper, lower, upper, first_seen, last_seen, context.fence
            )
