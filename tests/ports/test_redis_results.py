"""TOP-7: exactly these keys and fields in a real Redis, whatever happens to it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from admitone.analytics import item_rules
from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.results import open_outlets
from admitone.results.publisher import Publisher, publish
from admitone.results.redis import RedisResults
from admitone.settings import load_settings
from tests.servers.postgres import free_port
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.counted import Counts

MINUTE = "minute_202611151000"
SHOES = {"url": {"/shoes": 60, "/hats": 30}}


def configured(url: str, **more: object) -> dict[str, dict[str, object]]:
    return {"results": {"kind": "redis", "url": url, "password": PASSWORD, **more}}


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    made = redis_server.client(redis_server.new_database())
    yield made
    made.close()


@pytest.fixture
def counts(tmp_path: Path, client: redis.Redis, redis_server: RedisServer) -> Counts:
    database = client.connection_pool.connection_kwargs["db"]
    return Counts(tmp_path, configured(redis_server.url(database)))


def send(counts: Counts) -> None:
    for outlet in open_outlets(counts.settings):
        publish(counts.store, item_rules(counts.settings), outlet)
        outlet.close()


def test_keys_and_fields_are_the_agreed_ones(counts, client):
    counts.add(0, {**SHOES, "url|deviceType=mobile": {"/shoes": 20}})
    send(counts)

    assert client.zrange(f"topk:{MINUTE}:url", 0, -1, desc=True, withscores=True) == [
        ("/shoes", 60.0),
        ("/hats", 30.0),
    ]
    assert client.zscore("topk:global:url|deviceType=mobile", "/shoes") == 20.0
    meta = client.hgetall(f"meta:{MINUTE}:url")
    assert {
        name: meta[name]
        for name in (
            *("totalEvents", "uniqueItems", "lastUpdated", "windowStart", "windowEnd"),
            *("errorBound", "k"),
        )
    } == {
        "totalEvents": "90",
        "uniqueItems": "2",
        "lastUpdated": "2025-11-15T09:46:40.123Z",
        "windowStart": "2026-11-15T10:00:00.000Z",
        "windowEnd": "2026-11-15T10:01:00.000Z",
        "errorBound": "0",
        "k": "100",
    }
    item = client.hgetall("item:url:/shoes")
    bounds = json.loads(item.pop("metadata"))
    assert item == {
        "itemKey": "/shoes",
        "itemType": "url",
        "totalCount": "60",
        "firstSeen": "2026-11-15T10:00:00.000Z",
        "lastSeen": "2026-11-15T10:00:00.000Z",
    }
    assert (bounds["lower"], bounds["upper"]) == (60, 60)
    kinds = {key.split(":")[0] for key in client.scan_iter("*")}
    assert kinds == {"topk", "meta", "item", "admitone"}


def test_first_and_last_sight_move_apart_whatever_comes_when(counts, client):
    for minute in (5, 2, 9, 7):
        counts.add(minute, {"url": {"/shoes": 1}})
        send(counts)

    item = client.hgetall("item:url:/shoes")
    assert item["firstSeen"] == "2026-11-15T10:02:00.000Z"
    assert item["lastSeen"] == "2026-11-15T10:09:00.000Z"
    assert item["totalCount"] == "4"


def test_each_size_of_window_expires_in_its_own_time_and_global_stays(counts, client):
    counts.add(0, SHOES)
    send(counts)

    days = {
        window: client.pttl(f"topk:{window}:url") / 86_400_000
        for window in (MINUTE, "hour_2026111510", "day_20261115", "month_202611")
    }
    assert days == pytest.approx(
        {MINUTE: 2, "hour_2026111510": 35, "day_20261115": 400, "month_202611": 1825}, rel=0.01
    )
    assert client.pttl(f"meta:{MINUTE}:url") > 0
    assert client.pttl("item:url:/shoes") > 0
    assert client.pttl("topk:global:url") == -1


def test_readers_never_see_half_a_list(counts, client):
    counts.add(0, {"url": {f"/{number}": 1 for number in range(100)}})
    send(counts)
    pipe = client.pipeline(transaction=True)
    for added in range(1, 20):
        counts.add(0, {"url": {f"/{number}": 1 for number in range(100)}})
        send(counts)
        pipe.zrange("topk:global:url", 0, -1, withscores=True)
        pipe.hget("meta:global:url", "totalEvents")
        listed, total = pipe.execute()
        assert sum(score for _, score in listed) == int(total) == 100 * (added + 1)


@pytest.mark.parametrize("earlier", [True, False])
def test_one_that_is_emptied_while_it_is_written_to_gets_everything(
    counts, client, monkeypatch, earlier
):
    counts.add(0, {**SHOES, "productId": {"p1": 1}})
    if earlier:
        send(counts)
    counts.add(0, SHOES)
    write, flushed = RedisResults.write, []

    def flush_once(self: RedisResults, *values: object) -> None:
        write(self, *values)
        if not flushed:
            flushed.append(client.flushdb())

    monkeypatch.setattr(RedisResults, "write", flush_once)
    send(counts)

    assert client.hget("meta:global:url", "totalEvents") == "180"
    assert client.hget("meta:global:productId", "totalEvents") == "1"
    assert client.zcard("topk:day_20261115:url") == 2


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_counting_goes_on_without_redis_and_it_is_filled_again_when_it_is_back(
    own_redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts = Counts(tmp_path, configured(own_redis.url(), interval=50))
    client = own_redis.client(own_redis.url())

    def total() -> str | None:
        try:
            return client.hget("meta:global:url", "totalEvents")
        except redis.ConnectionError:
            return None

    publisher = Publisher(counts.settings)
    counts.add(0, SHOES)
    eventually(lambda: total() == "90")
    with caplog.at_level(logging.WARNING, "admitone"):
        own_redis.kill()
        counts.add(1, SHOES)
        eventually(lambda: "Counting goes on" in caplog.text)
        counts.add(2, SHOES)
        own_redis.start()
        eventually(lambda: total() == "270")
        eventually(lambda: "is in Redis again" in caplog.text)
    client.flushall()
    eventually(lambda: total() == "270")
    assert client.hget(f"meta:{MINUTE}:url", "totalEvents") == "90"
    counts.add(3, SHOES)
    publisher.close()
    assert total() == "360"


def test_a_redis_that_is_away_at_the_end_does_not_hold_up_the_end(tmp_path, caplog):
    counts = Counts(tmp_path, configured(f"redis://127.0.0.1:{free_port()}/0"))
    counts.add(0, SHOES)
    publisher = Publisher(counts.settings)
    begun = time.monotonic()
    publisher.close()

    assert time.monotonic() - begun < 10
    assert "Redis does not answer" in caplog.text


def test_a_wrong_password_is_a_matter_of_configuration_and_never_told(redis_server):
    outlet = RedisResults({"url": redis_server.url(), "password": "a wrong password"}, {})

    with pytest.raises(ConfigurationError, match="refuses the user or the password") as refused:
        outlet.reached()
    assert "wrong" not in str(refused.value).replace("went wrong", "")


def test_a_password_may_come_from_a_file(redis_server, tmp_path):
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    settings = load_settings(
        tmp_path,
        results={"kind": "redis", "url": redis_server.url(), "password_file": "secret"},
    )
    (outlet,) = open_outlets(settings)

    assert outlet.reached() is None or outlet.reached()


def test_a_password_in_the_configuration_file_is_refused(tmp_path):
    for line in (
        'results.url = "redis://:hunter2@redis.internal"',
        'results.password = "hunter2"',
        'history.url = "postgresql://admitone:hunter2@db.internal/x"',
    ):
        (tmp_path / "admitone.toml").write_text(line)
        with pytest.raises(ConfigurationError, match="holds a secret") as refused:
            load_settings(tmp_path)
        assert "hunter2" not in str(refused.value)


def test_one_that_does_not_answer_says_what_to_check():
    outlet = RedisResults({"url": f"redis://127.0.0.1:{free_port()}/0"}, {})

    with pytest.raises(ServiceUnreachable, match="Redis does not answer"):
        outlet.reached()
