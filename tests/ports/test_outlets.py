"""What everybody who keeps answers for others guarantees, checked on each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from admitone.analytics import item_rules, open_sketch_store
from admitone.analytics.store_state import Point
from admitone.core.errors import IntegrityError, ServiceUnreachable
from admitone.core.windows import MINUTE_MS, parse_window
from admitone.infra.clock import wall_clock
from admitone.results.history import HistoryReader, Pace, PostgresHistory
from admitone.results.list_view import ViewContext
from admitone.results.port import ListResult, Outlet
from admitone.results.publisher import begin_life, publish
from admitone.results.redis import RedisResults
from tests.servers.postgres import PostgresServer
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.counted import T0, Counts

DAY = 86_400_000
EXPIRE = dict.fromkeys(("minute", "hour", "day", "week", "month", "item"), 60_000)
KEEP = {"minute": 2 * DAY, "hour": 400 * DAY}
SHOES = {"url": {"/shoes": 60, "/hats": 30}}


class Held(NamedTuple):
    """What a reader finds of a list."""

    items: dict[str, int]
    total: int
    late: int
    complete: bool


class Place(Protocol):
    """One kind of outlet, and how anybody reads from it."""

    outlets: list[Outlet]

    def held(self, window: str, name: str = "url") -> Held | None: ...
    def empty(self) -> None: ...
    def again(self) -> list[Outlet]: ...


class InRedis:
    def __init__(self, server: RedisServer) -> None:
        self._url = server.new_database()
        self.client = server.client(self._url)
        self.outlets = self.again()

    def again(self) -> list[Outlet]:
        return [RedisResults({"url": self._url, "password": PASSWORD}, EXPIRE)]

    def held(self, window: str, name: str = "url") -> Held | None:
        meta = self.client.hgetall(f"meta:{window}:{name}")
        if not meta:
            return None
        items = self.client.zrange(f"topk:{window}:{name}", 0, -1, withscores=True)
        return Held(
            {item: int(score) for item, score in items},
            int(meta["totalEvents"]),
            int(meta["late"]),
            meta["complete"] == "1",
        )

    def empty(self) -> None:
        self.client.flushdb()


class InPostgres:
    def __init__(self, server: PostgresServer) -> None:
        self.url = server.new_schema()
        self.outlets = self.again()
        self.reader = HistoryReader(self.url)

    def again(self) -> list[Outlet]:
        return [PostgresHistory(self.url, pace, KEEP, 1) for pace in Pace]

    def held(self, window: str, name: str = "url") -> Held | None:
        found = self.reader.result(parse_window(window), name)
        if found is None:
            return None
        items = {entry.item: entry.estimate for entry in found.items}
        return Held(items, found.total, found.late, found.complete)

    def empty(self) -> None:
        def truncate(db: object) -> None:
            db.execute("TRUNCATE heavy_hitters, window_metadata, history_written")  # type: ignore[attr-defined]

        self.outlets[0]._database.run(truncate)  # type: ignore[attr-defined]


@pytest.fixture(params=["redis", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made: Place
    if request.param == "redis":
        made = InRedis(request.getfixturevalue("redis_server"))
    else:
        made = InPostgres(request.getfixturevalue("postgres_server"))
    yield made
    for outlet in made.outlets:
        outlet.close()


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    made = Counts(tmp_path)
    yield made
    made.store.close()


Publish = Callable[[], int]


@pytest.fixture
def publishing(place: Place, counts: Counts) -> Publish:
    rules = item_rules(counts.settings)
    return lambda: sum(publish(counts.store, rules, outlet) for outlet in place.outlets)


def test_every_window_of_what_was_counted_is_there(place, counts, publishing):
    counts.add(0, {**SHOES, "url|deviceType=mobile": {"/shoes": 7}}, late=4)
    publishing()

    for window in ("minute_202611151000", "hour_2026111510", "day_20261115", "week_202646"):
        assert place.held(window) == Held({"/shoes": 60, "/hats": 30}, 90, 4, False)
    assert place.held("global", "url|deviceType=mobile") == Held({"/shoes": 7}, 7, 4, False)
    assert place.held("month_202611", "searchQuery") is None


def test_a_list_is_replaced_and_not_added_to(place, counts, publishing):
    counts.add(0, SHOES)
    publishing()
    counts.add(0, {"url": {"/hats": 40}})
    publishing()

    assert place.held("hour_2026111510") == Held({"/shoes": 60, "/hats": 70}, 130, 0, False)


def test_only_what_changed_is_written_again(place, counts, publishing):
    counts.add(0, {**SHOES, "productId": {"p1": 1}})
    assert publishing() == 12
    assert publishing() == 0
    counts.add(0, {"productId": {"p2": 1}})
    assert publishing() == 6


def test_a_window_that_becomes_complete_is_told_so_even_when_nothing_was_added(
    place, counts, publishing
):
    counts.add(0, SHOES)
    publishing()
    counts.add(75, {"productId": {"p1": 1}})
    publishing()

    assert place.held("minute_202611151000").complete
    assert place.held("hour_2026111510").complete
    assert not place.held("day_20261115").complete
    assert not place.held("global").complete


def test_one_that_was_emptied_gets_everything_again(place, counts, publishing):
    for minute in (0, 1, 75):
        counts.add(minute, SHOES)
        publishing()
    windows = [window.key for window in counts.store.windows()]
    before = {window: place.held(window) for window in windows}
    place.empty()
    assert place.held("global") is None
    publishing()

    assert None not in before.values()
    assert {window: place.held(window) for window in windows} == before


def test_an_older_write_never_replaces_a_newer_one(place, counts, publishing):
    counts.add(0, SHOES)
    stale = results(counts)
    counts.add(0, SHOES)
    publishing()
    for outlet in place.again():
        outlet.write(stale, ())
        outlet.close()

    assert place.held("global") == Held({"/shoes": 120, "/hats": 60}, 180, 0, False)
    assert publishing() == 0


def restored(counts: Counts, copy: Path) -> None:
    counts.store.close()
    file = counts.settings.sqlite_path(counts.settings.topk.store)
    for beside in file.parent.glob(f"{file.name}*"):
        beside.unlink()
    shutil.copy(copy, file)
    counts.store = open_sketch_store(counts.settings)


@pytest.mark.parametrize("clock", ["ahead", "behind"])
@pytest.mark.parametrize("published_between", [True, False])
def test_a_store_that_was_restored_from_an_older_copy_is_written_again_whole(
    place: Place, counts: Counts, tmp_path: Path, clock: str, published_between: bool
) -> None:
    rules, now = item_rules(counts.settings), wall_clock()

    def publish_all() -> None:
        for outlet in place.outlets:
            publish(counts.store, rules, outlet)

    begin_life(counts.store, place.again(), now)
    counts.add(0, {"url": {"/shoes": 3}})
    counts.store.close()
    shutil.copy(counts.settings.sqlite_path(counts.settings.topk.store), tmp_path / "copy")
    for _ in range(4):
        counts.add(0, {"url": {"/shoes": 1}, "productId": {"p1": 1}})
    publish_all()
    restored(counts, tmp_path / "copy")

    begin_life(counts.store, place.again(), now + 1 if clock == "ahead" else now - 1_000)
    counts.add(0, {"url": {"/shoes": 5}})
    if published_between:
        publish_all()
    for minute in range(1, 6):
        counts.add(minute, {"productId": {"p1": 1}})
    publish_all()

    assert place.held("global") == Held({"/shoes": 8}, 8, 0, False)
    assert place.held("minute_202611151000") == Held({"/shoes": 8}, 8, 0, False)
    assert place.held("minute_202611151000", "productId") is None


def test_a_query_that_starts_again_writes_only_what_changed(
    place: Place, counts: Counts, publishing: Publish
) -> None:
    counts.add(0, {**SHOES, "productId": {"p1": 1}})
    publishing()
    for life in (1, 2):
        begin_life(counts.store, place.again(), wall_clock() + life)
        assert publishing() == 0
    counts.add(0, {"productId": {"p2": 1}})
    assert publishing() == 6


def test_counts_that_went_back_are_not_taken_for_newer_ones(
    place: Place, counts: Counts, publishing: Publish
) -> None:
    counts.add(0, SHOES)
    publishing()
    ahead = counts.store.state().generation + 1_000
    counts.store.begin_life(ahead)
    counts.add(0, SHOES)
    publishing()
    place.outlets[0].finish(Point(ahead + 1, 1, T0, T0), ())

    with pytest.raises(IntegrityError, match="restored from an older copy"):
        publishing()


def test_a_writer_that_stopped_half_way_is_made_up_for(place, counts, publishing, monkeypatch):
    counts.add(0, SHOES)
    publishing()
    counts.add(1, SHOES)

    def lost(*_: object) -> None:
        raise ServiceUnreachable("gone")

    for outlet in place.outlets:
        monkeypatch.setattr(type(outlet), "finish", lost)
    with pytest.raises(ServiceUnreachable):
        publishing()
    monkeypatch.undo()
    counts.add(2, {"productId": {"p1": 1}})
    publishing()

    assert place.held("minute_202611151001").total == 90
    assert place.held("hour_2026111510").total == 180


def test_another_life_of_the_store_replaces_what_an_earlier_one_left(
    place, counts, publishing, tmp_path
):
    for minute in range(5):
        counts.add(minute, {**SHOES, "productId": {"p1": 1}})
    publishing()
    fresh = Counts(tmp_path / "fresh")
    fresh.add(3, {"url": {"/new": 1}})
    rules = item_rules(fresh.settings)
    for outlet in place.outlets:
        publish(fresh.store, rules, outlet)
    fresh.store.close()

    assert place.held("hour_2026111510") == Held({"/new": 1}, 1, 0, False)
    assert place.held("hour_2026111510", "productId") is None


def test_items_of_any_spelling_are_kept_apart(place, counts, publishing):
    odd = {"a:b": 5, "é\n|": 4, "%s {}": 3, "": 2, " ": 1}
    counts.add(0, {"url": odd, "url|pageCategory=x:y|z": {"a:b": 1}})
    publishing()

    assert place.held("global").items == odd
    assert place.held("global", "url|pageCategory=x:y|z").items == {"a:b": 1}


def test_a_long_list_is_whole(place, tmp_path):
    counts = Counts(tmp_path / "long", {"topk": {"k": 7_000}})
    counts.add(0, {"url": {f"/{number}": number + 1 for number in range(7_000)}})
    for outlet in place.outlets:
        publish(counts.store, item_rules(counts.settings), outlet)
    counts.store.close()

    assert len(place.held("global").items) == 7_000


def results(counts: Counts) -> list[ListResult]:
    """Return every list as it is now."""
    store = counts.store
    context = ViewContext(store, item_rules(counts.settings))
    return [known.result() for known in context.known(store.windows(), "url")]


def test_what_is_written_says_which_point_it_is_of(counts):
    counts.add(0, SHOES)
    first = counts.store.state().point
    counts.add(30, SHOES)
    then = counts.store.state().point

    assert first is not None
    assert then is not None
    assert first.fence < then.fence < then._replace(revision=10**9).fence
    assert then.fence < then._replace(generation=then.generation + 1, revision=0).fence
    assert (then.frontier, then.newest) == (T0 + 30 * MINUTE_MS,) * 2
    assert replace(results(counts)[0], fence="").total > 0
