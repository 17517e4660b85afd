"""`/v1/live` tells what changed, and only that."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx

from tests.support.homes import count_everything, fill, serving
from tests.support.pipeline import event


def events(response: httpx.Response) -> Iterator[tuple[str, dict]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_watcher_is_told_everything_once_and_then_what_changed(tmp_path):
    settings = fill(tmp_path, 400)
    question = {"dimension": "url", "window": "all", "k": 3}
    with serving(tmp_path) as running, running.client() as client:
        before = client.get("/v1/topk", params=question).json()
        with client.stream("GET", "/v1/live", params=question) as live:
            told = events(live)
            first: dict[str, dict] = {}
            while first.keys() != {"rates", "lag", "gate", "topk"}:
                name, document = next(told)
                first[name] = document
            line = json.loads(event("live", {"url": before["items"][0]["item"]}))
            client.post("/v1/events", params={"run": "live"}, json=[line]).raise_for_status()
            threading.Thread(target=count_everything, args=(settings,)).start()
            changed: dict[str, dict] = {}
            while not {"topk", "gate"} <= changed.keys() or not _sees_run(changed):
                name, document = next(told)
                changed[name] = document

    assert first["topk"] == before
    assert [run["gate"] for run in first["gate"]["runs"]] == ["red"]
    assert first["lag"]["uncounted"] == 0
    assert changed["topk"]["total"] == before["total"] + 1
    assert [run["run_id"] for run in changed["gate"]["runs"]] == ["live", "shop"]


def test_decisions_of_each_second_are_told_by_verdict(tmp_path):
    with serving(tmp_path) as running, running.client() as client:
        rows = [json.loads(event("a")), json.loads(event("a")), "nonsense"]
        client.post("/v1/events", json=rows).raise_for_status()
        with client.stream("GET", "/v1/live", params={"beats": 1}) as live:
            rates = dict(events(live))["rates"]

    (second,) = rates
    assert {name: second[name] for name in second if name != "at"} == {
        "ADMITTED": 1, "DUPLICATE": 1, "QUARANTINED": 1,
    }  # fmt: skip


def test_a_question_that_has_no_answer_is_told_within_the_stream(client):
    question = {"dimension": "urls", "beats": 1}
    with client.stream("GET", "/v1/live", params=question) as live:
        told = dict(events(live))

    assert told["topk"]["code"] == "NOT_FOUND"
    assert "did you mean 'url'" in told["topk"]["remedy"]


def test_more_watchers_than_may_are_refused(tmp_path):
    with (
        serving(tmp_path, ADMITONE_SERVICE__MAX_WATCHERS="1") as running,
        running.client() as client,
        client.stream("GET", "/v1/live") as live,
    ):
        told = events(live)
        next(told)
        refused = client.get("/v1/live")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


def test_a_watcher_who_comes_later_is_told_everything_too(client):
    for _ in range(2):
        with client.stream("GET", "/v1/live", params={"beats": 1}) as live:
            assert dict(events(live)).keys() == {"rates", "lag", "gate"}


def test_events_are_those_the_description_names(client):
    schema = client.get("/openapi.json").json()
    content = schema["paths"]["/v1/live"]["get"]["responses"]["200"]["content"]
    named = content["text/event-stream"]["schema"]["properties"]["event"]["enum"]
    with client.stream("GET", "/v1/live", params={"beats": 1, "dimension": "url"}) as live:
        assert live.headers["content-type"].startswith("text/event-stream")
        assert dict(events(live)).keys() == set(named)


def _sees_run(changed: dict[str, dict]) -> bool:
    return len(changed["gate"]["runs"]) == 2
