"""`/v1/topk` from Redis says so, says the same as the store, and falls back to it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from admitone.settings import load_settings
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.homes import publish_everything, serving

DIMENSIONS = ("url", "productId", "apiEndpoint")
WINDOWS = ("1m", "1h", "1d", "1w", "1mo", "all")


@pytest.fixture
def with_redis(filled_home: Path, tmp_path: Path, own_redis: RedisServer, monkeypatch):
    """A copy of the filled home whose results are in a Redis of its own."""
    monkeypatch.setenv("ADMITONE_RESULTS__PASSWORD", PASSWORD)
    home = tmp_path / "home"
    shutil.copytree(filled_home, home)
    with (home / "admitone.toml").open("a") as file:
        file.write(f'\n[results]\nkind = "redis"\nurl = "{own_redis.new_database()}"\n')
    return home


def from_redis(client: httpx.Client, question: dict[str, object]) -> dict[str, Any]:
    """Ask until Redis answers: on a busy machine it may be slow, and is then left alone for a while."""
    deadline = time.monotonic() + 30
    while True:
        found: dict[str, Any] = client.get("/v1/topk", params=question).json()
        if found.pop("source")["kept_in"] == "redis":
            return found
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_answers_from_redis_are_those_of_the_store(with_redis, client):
    publish_everything(load_settings(with_redis))
    compared = 0
    with serving(with_redis) as running, running.client() as redis_client:
        for dimension in DIMENSIONS:
            for window in WINDOWS:
                question = {"dimension": dimension, "window": window, "k": 7}
                stored = client.get("/v1/topk", params=question).json()
                if not stored["total"] + stored["late"]:
                    continue  # the newest minute may hold nothing of a list, and then Redis does not
                found = from_redis(redis_client, question)
                compared += 1
                assert stored.pop("source")["kept_in"] == "sketches"
                assert found == stored
    assert compared >= len(DIMENSIONS) * (len(WINDOWS) - 1)


def test_a_list_of_one_value_is_in_redis_too(with_redis, client):
    publish_everything(load_settings(with_redis))
    url = next(
        d for d in client.get("/v1/dimensions").json()["dimensions"] if d["dimension"] == "url"
    )
    attribute, values = next((a, v) for a, v in url["attributes"].items() if v)
    question = {"dimension": "url", "window": "all", "where": f"{attribute}={values[0]}"}
    with serving(with_redis) as running, running.client() as redis_client:
        found = from_redis(redis_client, question)

    stored = client.get("/v1/topk", params=question).json()
    stored.pop("source")
    assert found == stored


def test_what_redis_does_not_have_comes_from_the_store_and_says_so(with_redis):
    with serving(with_redis) as running, running.client() as client:
        empty = client.get("/v1/topk", params={"dimension": "url", "window": "1d"}).json()
        publish_everything(load_settings(with_redis))
        larger = client.get(
            "/v1/topk", params={"dimension": "url", "window": "1d", "k": 500}
        ).json()
        wrong = client.get("/v1/topk", params={"dimension": "urls", "window": "1d"})

    for answer in (empty, larger):
        assert answer["source"]["kept_in"] == "sketches"
        assert answer["source"]["instead_of"] == "redis"
        assert answer["items"]
    assert wrong.status_code == 404
    assert "did you mean 'url'" in wrong.json()["remedy"]


def test_a_redis_that_hangs_or_is_gone_delays_nobody_for_long(with_redis, own_redis):
    publish_everything(load_settings(with_redis))
    question = {"dimension": "url", "window": "1d"}
    with serving(with_redis) as running, running.client() as client:
        from_redis(client, question)
        own_redis.client(own_redis.url()).client_pause(60_000)
        hanging = client.get("/v1/topk", params=question)
        after = client.get("/v1/topk", params=question)
        own_redis.kill()
        gone = client.get("/v1/topk", params=question)

    for answer in (hanging, after, gone):
        assert answer.json()["source"]["instead_of"] == "redis"
        assert answer.elapsed.total_seconds() < 10
