"""Every endpoint answers as the command line does, and every refusal is a problem document."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from admitone.cli import app
from admitone.service.http.api import create_app, front_of
from admitone.settings import FILE_NAME, load_settings
from admitone.spark.checkpoints import state_checkpoint, write_figures
from tests.servers.postgres import PostgresServer
from tests.servers.service import wait_until
from tests.support.closing import open_run
from tests.support.homes import fill, serving, start_service
from tests.support.pipeline import Pipeline, event

runner = CliRunner()


def command(home: Path, *words: str) -> dict:
    outcome = runner.invoke(app, ["--home", str(home), *words, "--json"])
    return json.loads(outcome.stdout)


def told(response, status: int, code: str) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["type"] == f"urn:admitone:problem:{code}"
    assert document["title"]
    assert document["detail"]
    return document


def test_top_k_is_the_command_line_s(client, filled_home):
    answer = client.get("/v1/topk", params={"dimension": "url", "window": "1d", "k": 5})

    assert answer.status_code == 200
    assert answer.json() == command(
        filled_home, "top", "--dimension", "url", "--window", "1d", "-k", "5"
    )


def test_an_item_is_the_command_line_s_whatever_its_key(client, filled_home):
    top = client.get("/v1/topk", params={"dimension": "url", "window": "1d"}).json()
    assert len(top["items"]) >= 5
    for line in top["items"][:5]:
        found = client.get(
            f"/v1/items/url/{_encoded(line['item'])}", params={"window": "1d"}
        ).json()
        assert found == command(filled_home, "item", "url", line["item"], "--window", "1d")
        assert (found["item"], found["estimate"]) == (line["item"], line["estimate"])


def test_an_item_moves_over_a_range_of_windows(client, filled_home):
    hours = client.get("/v1/windows", params={"size": "1h"}).json()["windows"]
    first, last = hours[0]["window"], hours[-1]["window"]
    item = client.get("/v1/topk", params={"dimension": "url", "window": "1d"}).json()["items"][0][
        "item"
    ]

    found = client.get(f"/v1/items/url/{_encoded(item)}", params={"from": first, "to": last}).json()

    assert [line["window"] for line in found["windows"]] == [line["window"] for line in hours]
    assert found == command(filled_home, "item", "url", item, "--from", first, "--to", last)


def test_what_rose_is_the_command_line_s(client, filled_home):
    found = client.get("/v1/trends", params={"dimension": "url", "window": "1h"})

    assert found.status_code == 200
    assert found.json() == command(filled_home, "trend", "--dimension", "url", "--window", "1h")


def test_windows_are_listed_newest_of_each_size(client):
    everything = client.get("/v1/windows", params={"newest": 10_000}).json()["windows"]
    newest = client.get("/v1/windows", params={"newest": 1}).json()["windows"]

    assert [line["kind"] for line in newest] == ["minute", "hour", "day", "week", "month", "global"]
    assert all(line in everything for line in newest)
    totals = client.get("/v1/windows", params={"size": "1d", "dimension": "url"}).json()["windows"]
    assert sum(line["total"] for line in totals) > 0


def test_windows_are_the_command_line_s(client, filled_home):
    all_of_them = {"newest": 10_000}
    for asked, words in (
        ({}, []),
        ({"size": "1h"}, ["--size", "1h"]),
        ({"dimension": "url"}, ["--dimension", "url"]),
    ):
        found = client.get("/v1/windows", params={**all_of_them, **asked}).json()
        assert found == command(filled_home, "windows", *words)
    assert (found["dimension"], found["where"]) == ("url", None)


def test_dimensions_name_the_values_that_have_lists(client):
    dimensions = client.get("/v1/dimensions").json()["dimensions"]
    url = next(line for line in dimensions if line["dimension"] == "url")

    named = [(name, value) for name, values in url["attributes"].items() for value in values]
    assert named
    for name, value in named:
        question = {"dimension": "url", "window": "all", "where": f"{name}={value}"}
        assert client.get("/v1/topk", params=question).status_code == 200


def test_pages_of_decisions_join_to_the_whole_list(client, filled_home):
    rows, cursor = [], None
    while True:
        question = {"run": "shop", "limit": 700, **({"cursor": cursor} if cursor else {})}
        page = client.get("/v1/decisions", params=question).json()
        rows += page["decisions"]
        cursor = page["next"]
        if cursor is None:
            break

    assert rows == command(filled_home, "decisions", "--run", "shop")["decisions"]


def test_a_cursor_stays_good_while_more_is_decided(tmp_path):
    fill(tmp_path, 500)
    with serving(tmp_path) as running, running.client() as client:
        first = client.get("/v1/decisions", params={"limit": 100}).json()
        before = client.get("/v1/decisions", params={"limit": 1000}).json()["decisions"]
        client.post("/v1/events", json=[json.loads(event("new"))]).raise_for_status()
        rest = client.get("/v1/decisions", params={"limit": 1000, "cursor": first["next"]}).json()

    assert first["decisions"] + rest["decisions"][:-1] == before
    assert rest["decisions"][-1]["event_id"] == "new"


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        ({"verdict": "DUPLICATE"}, ["--verdict", "DUPLICATE"]),
        ({"reason": "NOT_JSON"}, ["--reason", "NOT_JSON"]),
        ({"source": "0:17"}, ["--source", "0:17"]),
        ({"bus": "admitted.traffic:0:3"}, ["--bus", "admitted.traffic:0:3"]),
        ({"since": "2030-01-01T00:00:00Z"}, ["--since", "2030-01-01T00:00:00Z"]),
    ],
)
def test_decisions_are_found_by_the_same_filters(client, filled_home, option, flag):
    found = client.get("/v1/decisions", params={**option, "run": "shop", "limit": 1000}).json()

    expected = command(filled_home, "decisions", "--run", "shop", *flag)
    assert found["decisions"] == expected["decisions"]


def test_a_receipt_is_the_command_line_s(client, filled_home):
    duplicate = client.get("/v1/decisions", params={"verdict": "DUPLICATE", "limit": 1}).json()
    event_id = duplicate["decisions"][0]["event_id"]

    found = client.get("/v1/receipts", params={"event": event_id, "run": "shop"}).json()

    assert found == command(filled_home, "receipt", event_id, "--run", "shop")
    assert found["receipt"]["verdict"] == "ADMITTED"


def test_a_contradiction_is_shown_with_both_payloads_and_their_difference(client, filled_home):
    question = {"reason": "PAYLOAD_MISMATCH", "run": "shop", "limit": 1}
    (row,) = client.get("/v1/quarantine", params=question).json()["quarantined"]

    found = client.get(f"/v1/quarantine/{row['id']}").json()

    shown = command(filled_home, "quarantine", "show", row["id"])
    assert {name: found[name] for name in shown} == shown
    first, second = json.loads(found["first_envelope"]), json.loads(found["envelope"])
    assert first["payload"] != second["payload"]
    assert found["difference"]
    for change in found["difference"]:
        values = [_at(side, change["path"]) for side in (first, second)]
        assert values[0] != values[1]


def test_a_run_shows_its_books_and_its_gate(client, filled_home):
    found = client.get("/v1/runs/shop").json()

    assert found["gate"] == "red"
    assert found["books"] == command(filled_home, "books", "--run", "shop")["runs"][0]
    gate = command(filled_home, "close", "shop", "--dry-run")
    assert found["checks"] == gate["checks"]


def test_a_red_run_is_not_closed_and_the_refusal_carries_its_gate(client):
    problem = told(client.post("/v1/runs/shop/close", json={}), 409, "RED")

    assert problem["gate"] == "red"
    assert any(check["blockers"] for check in problem["checks"])


def test_status_says_what_waits(client):
    found = client.get("/v1/status").json()

    assert found["undecided"] == 0
    assert {line["query"] for line in found["partitions"]} == {"boundary", "analytics"}


def test_a_quarantined_delivery_is_discarded_with_reason_and_author(tmp_path):
    fill(tmp_path, 600, malformed=0.05)
    with serving(tmp_path) as running, running.client() as client:
        rows = client.get("/v1/quarantine", params={"reason": "NOT_JSON"}).json()["quarantined"]
        order = {"reason": "a probe", "author": "kim"}
        done = client.post(f"/v1/quarantine/{rows[0]['id']}/discard", json=order)
        again = client.post(f"/v1/quarantine/{rows[0]['id']}/discard", json=order)
        left = client.get("/v1/quarantine", params={"reason": "NOT_JSON"}).json()["quarantined"]
        shown = client.get(f"/v1/quarantine/{rows[0]['id']}").json()

    assert done.json() == {"discarded": 1}
    told(again, 404, "NOT_FOUND")
    assert left == rows[1:]
    resolution = shown["resolution"]
    assert (resolution["action"], resolution["author"], resolution["reason"]) == (
        "DISCARDED", "kim", "a probe",
    )  # fmt: skip


def test_a_run_turns_green_when_everything_is_resolved_and_is_closed(tmp_path):
    fill(tmp_path, 600, malformed=0.0, contradictions=0.01)
    with serving(tmp_path) as running, running.client() as client:
        rows = client.get("/v1/quarantine").json()["quarantined"]
        assert {row["reason"] for row in rows} == {"PAYLOAD_MISMATCH"}
        needs_choice = client.post(f"/v1/quarantine/{rows[0]['id']}/release", json={"reason": "?"})
        for number, row in enumerate(rows):
            choice = "as-new" if number == 0 else "keep-first"
            order = {"reason": "agreed with the shop", "choice": choice}
            client.post(f"/v1/quarantine/{row['id']}/release", json=order).raise_for_status()
        is_green = lambda: client.get("/v1/runs/shop").json()["gate"] == "green"  # noqa: E731
        wait_until(is_green, "the evidence of what was done is written")
        closed = client.post("/v1/runs/shop/close", json={})
        again = client.post("/v1/runs/shop/close", json={})
        late = client.post("/v1/events", params={"run": "shop"}, json=[json.loads(event("late"))])
    verified = runner.invoke(app, ["--home", str(tmp_path), "verify", "shop"])

    told(needs_choice, 409, "FAILED")
    assert closed.json()["closed"]
    assert closed.json()["artifact"]["merkle_root"]
    assert again.json()["closed"]
    assert late.json()["decisions"][0]["reason"] == "RUN_CLOSED"
    assert verified.exit_code == 0, verified.output


def test_a_run_that_is_closed_is_closed_for_both_whatever_is_waived_when_it_is_asked_again(
    tmp_path,
):
    (tmp_path / FILE_NAME).write_text(
        '[[topics]]\nfamily = "traffic"\ntopic = "t"\nevent_types = ["page_view"]\n'
        '[[topics]]\nfamily = "orders"\ntopic = "o"\nevent_types = ["purchase"]\nrequired = true\n'
    )
    open_run(tmp_path)

    def close(*options: str) -> int:
        return runner.invoke(
            app, ["--home", str(tmp_path), "close", "r", "--json", *options]
        ).exit_code

    assert close() == 5
    assert close("--waive", "orders") == close() == close("--dry-run") == 0
    with serving(tmp_path) as running, running.client() as client:
        asked = client.post("/v1/runs/r/close", json={})

    assert (asked.status_code, asked.json()["closed"]) == (200, True)
    assert asked.json() == command(tmp_path, "close", "r")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/nothing", 404, "NOT_FOUND"),
        ("/v1/topk?dimension=urls", 404, "NOT_FOUND"),
        ("/v1/topk?dimension=url&window=hour_1999010100", 404, "NOT_FOUND"),
        ("/v1/topk", 422, "INVALID"),
        ("/v1/topk?dimension=url&k=0", 422, "INVALID"),
        ("/v1/topk?dimension=url&k=1001", 422, "INVALID"),
        ("/v1/topk?dimension=url&dimesion=url", 422, "INVALID"),
        ("/v1/items/url/x?from=1h&to=1d", 404, "NOT_FOUND"),
        ("/v1/decisions?limit=0", 422, "INVALID"),
        ("/v1/decisions?cursor=somewhere", 422, "INVALID"),
        ("/v1/decisions?since=yesterday", 422, "INVALID"),
        ("/v1/receipts?event=unknown", 404, "NOT_FOUND"),
        ("/v1/quarantine/99999-0", 404, "NOT_FOUND"),
        ("/v1/quarantine/x", 404, "NOT_FOUND"),
        ("/v1/runs/unknown", 404, "NOT_FOUND"),
    ],
)
def test_a_question_that_has_no_answer_is_refused_with_a_problem_document(
    client, path, status, code
):
    told(client.get(path), status, code)


def test_a_wrong_method_is_refused(client):
    told(client.delete("/v1/topk"), 405, "METHOD_NOT_ALLOWED")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client):
    large = client.post("/v1/events", content=b"x" * 8_000_001, headers=_json())
    told(large, 413, "CONTENT_TOO_LARGE")
    pieces = client.post("/v1/events", content=iter([b"x" * 1_000_000] * 9), headers=_json())
    told(pieces, 413, "CONTENT_TOO_LARGE")


def test_too_many_events_in_a_request_are_refused(client):
    told(
        client.post("/v1/events", content=b"[" + b"1," * 1000 + b"1]", headers=_json()),
        413,
        "TOO_MANY_EVENTS",
    )


def test_another_media_type_is_refused(client):
    told(
        client.post("/v1/events", content=b"[]", headers={"Content-Type": "text/plain"}),
        415,
        "MEDIA_TYPE",
    )


def test_a_body_that_is_no_array_is_refused(client):
    told(client.post("/v1/events", content=b"[1,", headers=_json()), 400, "NOT_AN_ARRAY")


def test_lines_and_arrays_are_delivered_alike(client):
    one, two = event("lines-1"), event("lines-2")
    lines = client.post(
        "/v1/events", params={"run": "lines"}, content=one + b"\n" + two + b"\n",
        headers={"Content-Type": "application/x-ndjson"},
    ).json()["decisions"]  # fmt: skip
    array = client.post(
        "/v1/events", params={"run": "lines"}, json=[json.loads(one), json.loads(two)]
    ).json()["decisions"]

    assert [row["verdict"] for row in lines] == ["ADMITTED", "ADMITTED"]
    assert [row["verdict"] for row in array] == ["DUPLICATE", "DUPLICATE"]
    assert [row["receipt"] for row in array] == [row["receipt"] for row in lines]


def test_requests_at_the_same_time_are_all_answered(client):
    answers: list = []

    def send(number: int) -> None:
        lines = b"\n".join(event(f"together-{number}-{each}") for each in range(5))
        headers = {"Content-Type": "application/x-ndjson"}
        response = client.post(
            "/v1/events", params={"run": "together"}, content=lines, headers=headers
        )
        answers.append((number, response.json()["decisions"]))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 20
    for number, rows in answers:
        assert [row["event_id"] for row in rows] == [
            f"together-{number}-{each}" for each in range(5)
        ]
        assert {row["verdict"] for row in rows} == {"ADMITTED"}


def test_metrics_count_requests_and_decisions(client):
    client.post("/v1/events", params={"run": "metrics"}, json=[json.loads(event("metrics"))])
    client.get("/v1/topk", params={"dimension": "url", "window": "1d"})

    text = client.get("/metrics").text

    assert 'admitone_http_requests_total{method="GET",route="/v1/topk",status="200"}' in text
    assert 'admitone_door_events_total{verdict="ADMITTED"}' in text
    assert "admitone_stores_up 1.0" in text
    assert 'admitone_partition_lag_offsets{partition="0",query="boundary",topic="raw"} 0.0' in text
    assert "admitone_undecided_deliveries 0.0" in text
    assert 'admitone_http_request_duration_seconds_bucket{le="0.1",route="/v1/topk"}' in text
    assert "process_resident_memory_bytes" in text
    assert 'admitone_deliveries_cached_total{partition="0",pipeline="admitone",topic="raw"}' in text
    assert "admitone_dedup_state" not in text


def test_metrics_say_what_engine_state_says_about_itself(tmp_path):
    pipeline = Pipeline(tmp_path)
    checkpoint = state_checkpoint(pipeline.settings, pipeline.topic)
    checkpoint.mkdir(parents=True)
    numbers = {"rows": 7, "bytes_on_disk": 900, "kept": 7, "dropped_duplicates": 3}
    write_figures(checkpoint, {**numbers, "eviction_ms": 1_500})
    running = start_service(tmp_path)
    with running.client() as client:
        text = client.get("/metrics").text
    running.stop()

    assert "admitone_dedup_state_rows 7.0" in text
    assert "admitone_dedup_state_disk_bytes 900.0" in text
    assert "admitone_dedup_state_dropped_duplicates_total 3.0" in text
    assert "admitone_dedup_state_eviction_seconds_total 1.5" in text


def test_health_and_readiness(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok"}


def test_a_home_in_which_nothing_happened_yet_is_answered_all_the_same(tmp_path):
    with serving(tmp_path) as running, running.client() as client:
        assert client.get("/v1/runs").json() == {"runs": []}
        assert client.get("/v1/decisions").json() == {"decisions": [], "next": None}
        problem = told(client.get("/v1/topk", params={"dimension": "url"}), 404, "NOT_FOUND")
        assert "Nothing has been counted yet" in problem["detail"]
        assert client.get("/").status_code == 200
        assert client.get("/readyz").status_code == 200


def test_the_service_ends_when_it_is_told_to_although_somebody_watches(tmp_path):
    with (
        serving(tmp_path) as running,
        running.client() as client,
        client.stream("GET", "/v1/live") as live,
    ):
        assert next(live.iter_text())
        running.process.terminate()
        assert running.process.wait(15) is not None


def _at(document: object, path: str) -> object:
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list):
            document = document[int(name)] if int(name) < len(document) else None
        elif isinstance(document, dict):
            document = document.get(name, "absent")
    return document


def _encoded(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _json() -> dict[str, str]:
    return {"Content-Type": "application/json"}


def test_more_than_may_wait_at_the_door_is_told_to_come_again(tmp_path):
    with (
        serving(tmp_path, ADMITONE_SERVICE__MAX_WAITING="1") as running,
        running.client() as client,
    ):
        full = client.post("/v1/events", json=[json.loads(event(name)) for name in "ab"])
        one = client.post("/v1/events", json=[json.loads(event("a"))])

    told(full, 429, "BUSY")
    assert full.headers["retry-after"] == "1"
    assert one.json()["decisions"][0]["verdict"] == "ADMITTED"


def test_a_database_that_is_down_is_said_and_the_same_request_converges(tmp_path):
    server = PostgresServer()
    try:
        (tmp_path / FILE_NAME).write_text(f'[ledger]\nurl = "{server.new_schema()}"\n')
        both = [json.loads(event(name)) for name in "ab"]
        with (
            serving(tmp_path, ADMITONE_SERVICE__DOOR_TIMEOUT="4s") as running,
            running.client() as client,
        ):
            first = client.post("/v1/events", json=both[:1])
            server.stop()
            down = client.post("/v1/events", json=both)
            ready = client.get("/readyz")
            server.start()
            wait_until(
                lambda: client.post("/v1/events", json=both).status_code == 200,
                "the door decides again",
            )
            again = client.post("/v1/events", json=both)
    finally:
        server.close()

    assert first.json()["decisions"][0]["verdict"] == "ADMITTED"
    assert down.status_code == ready.status_code == 503
    assert down.headers["retry-after"] == ready.headers["retry-after"] == "1"
    assert down.headers["content-type"] == "application/problem+json"
    rows = again.json()["decisions"]
    assert [row["verdict"] for row in rows] == ["DUPLICATE", "DUPLICATE"]
    assert rows[0]["receipt"] == first.json()["decisions"][0]["receipt"]


def test_a_mistake_of_ours_is_a_problem_document_with_every_header(tmp_path):
    made = create_app(load_settings(tmp_path))

    @made.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret")

    transport = httpx.ASGITransport(front_of(made), raise_app_exceptions=False)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/broken")

    answer = asyncio.run(ask())

    assert "secret" not in told(answer, 500, "INTERNAL")["detail"]
    assert answer.headers["x-frame-options"] == "DENY"


def test_an_origin_that_is_none_is_refused_as_foreign(client):
    answer = client.post("/v1/events", json=[], headers={"Origin": "http://["})

    told(answer, 403, "FOREIGN_ORIGIN")
    assert answer.headers["x-content-type-options"] == "nosniff"
