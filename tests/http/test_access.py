"""Who gets in, and what an answer gives away."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import httpx
import pytest

from admitone.core.errors import ConfigurationError
from admitone.infra.json_log import JsonLines
from admitone.service.http.authentication import Access
from admitone.service.http.server import refuse_open_doors
from admitone.settings import load_settings
from tests.support.homes import home_with_tokens, serving
from tests.support.pipeline import event


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("guarded")
    tokens = home_with_tokens(home)
    with serving(home) as running, running.client() as client:
        yield client, tokens


def test_without_a_token_nothing_but_health_is_answered(guarded):
    client, _ = guarded
    for path in ("/v1/runs", "/v1/decisions", "/v1/live", "/metrics", "/v1/topk?dimension=url"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["content-type"] == "application/problem+json"
    assert client.post("/v1/events", json=[]).status_code == 401
    assert client.get("/healthz").status_code == 200


def test_every_route_of_the_api_is_denied_by_default(guarded):
    client, _ = guarded
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        if path in ("/healthz", "/readyz"):
            continue
        for method in methods:
            asked = path.replace("{", "").replace("}", "")
            assert client.request(method, asked, json={}).status_code == 401, (method, path)


@pytest.mark.parametrize("token", ["wrong", "admitone_" + "A" * 43])
def test_a_wrong_token_is_denied(guarded, token):
    client, _ = guarded
    assert client.get("/v1/runs", headers=bearer(token)).status_code == 401


def test_another_scheme_is_denied(guarded):
    client, tokens = guarded
    headers = {"Authorization": f"Basic {tokens['read']}"}
    assert client.get("/v1/runs", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("role", "allowed"),
    [("read", {"read"}), ("operate", {"read", "operate"}), ("ingest", {"ingest"})],
)
def test_a_role_may_do_its_own_things_only(guarded, role, allowed):
    client, tokens = guarded
    headers = bearer(tokens[role])
    answered = {
        "read": client.get("/v1/runs", headers=headers).status_code,
        "operate": client.post(
            "/v1/quarantine/1-0/discard", headers=headers, json={"reason": "x"}
        ).status_code,
        "ingest": client.post("/v1/events", headers=headers, json=[]).status_code,
    }

    for name, status in answered.items():
        assert (status != 403) == (name in allowed), answered


def test_who_acts_is_the_token_s_name_whatever_they_say(guarded):
    client, tokens = guarded
    headers = {**bearer(tokens["ingest"]), "Content-Type": "application/json"}
    rows = client.post("/v1/events", headers=headers, content=b"[nonsense]").json()["decisions"]
    order = {"reason": "a probe", "author": "somebody else"}
    client.post(
        f"/v1/quarantine/{rows[0]['id']}/discard", headers=bearer(tokens["operate"]), json=order
    ).raise_for_status()

    shown = client.get(f"/v1/quarantine/{rows[0]['id']}", headers=bearer(tokens["read"])).json()

    assert shown["resolution"]["author"] == "operateer"


def test_all_hashes_are_compared_whichever_fits(tmp_path, monkeypatch):
    tokens = home_with_tokens(tmp_path)
    access = Access(load_settings(tmp_path))
    compared = []
    monkeypatch.setattr(
        "admitone.service.http.authentication.hmac.compare_digest",
        lambda one, other: compared.append(1) or one == other,
    )

    for token in (*tokens.values(), "wrong"):
        access.caller(f"Bearer {token}")

    assert len(compared) == 4 * 3


def test_the_file_holds_no_token(tmp_path):
    tokens = home_with_tokens(tmp_path)
    text = (tmp_path / "admitone.toml").read_text()

    assert not any(token in text for token in tokens.values())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_listening_elsewhere_without_tokens_is_refused(tmp_path, host):
    with pytest.raises(ConfigurationError, match="no token is configured"):
        refuse_open_doors(load_settings(tmp_path, service={"host": host}))
    home_with_tokens(tmp_path)
    refuse_open_doors(load_settings(tmp_path, service={"host": host}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_listening_on_this_machine_needs_no_tokens(tmp_path, host):
    refuse_open_doors(load_settings(tmp_path, service={"host": host}))


def test_the_command_refuses_with_exit_code_3(tmp_path):
    words = [sys.executable, "-m", "admitone", "--home", str(tmp_path), "serve"]
    done = subprocess.run(
        [*words, "--host", "0.0.0.0"], capture_output=True, timeout=60, check=False
    )

    assert done.returncode == 3
    assert b"no token is configured" in done.stderr


def test_a_token_is_printed_once_and_its_entry_lets_it_in(tmp_path):
    words = [sys.executable, "-m", "admitone", "token", "wall", "--role", "read"]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True, text=True)
    token, entry = done.stdout.strip(), done.stderr.partition("[[")[2]
    (tmp_path / "admitone.toml").write_text(f"[[{entry}")

    assert token not in done.stderr
    caller = Access(load_settings(tmp_path)).caller(f"Bearer {token}")
    assert caller is not None
    assert caller.name == "wall"


def test_answers_carry_the_headers_that_protect_a_browser(client):
    for path in ("/", "/v1/runs", "/v1/nothing", "/web/app.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert client.get("/v1/runs").headers["cache-control"] == "no-store"


def test_a_page_of_another_site_can_do_nothing(client):
    elsewhere = {"Origin": "https://evil.example"}
    refused = client.post("/v1/events", json=[], headers=elsewhere)
    assert refused.status_code == 403
    assert refused.json()["code"] == "FOREIGN_ORIGIN"
    same = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/v1/events", json=[], headers=same).status_code == 200
    assert "access-control-allow-origin" not in client.get("/v1/runs", headers=elsewhere).headers


def test_another_name_for_this_machine_is_not_answered_without_tokens(client):
    refused = client.get("/v1/runs", headers={"Host": "evil.example"})

    assert refused.status_code == 421
    assert refused.json()["code"] == "WRONG_HOST"


def test_the_log_names_routes_and_never_what_was_asked_for(tmp_path):
    tokens = home_with_tokens(tmp_path)
    with serving(tmp_path, ADMITONE_SERVICE__LOG="all") as running, running.client() as client:
        client.get("/v1/topk?dimension=secret-question", headers=bearer(tokens["read"]))
        client.get("/v1/items/search/secret-item", headers=bearer(tokens["read"]))
        client.get("/v1/runs?token=secret-token", headers=bearer("secret-bearer"))
        body = event("secret-event", {"url": "/secret-url"})
        client.post("/v1/events", headers=bearer(tokens["ingest"]), json=[json.loads(body)])
        running.stop()
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]

    asked = {line["route"] for line in lines if line["event"] == "request"}
    assert {"/v1/topk", "/v1/items/{item_type}/{key:path}", "/v1/events"} <= asked
    assert {line["caller"] for line in lines if line.get("route") == "/v1/events"} == {"ingester"}
    text = running.log.read_text()
    assert "secret" not in text
    assert not any(token in text for token in tokens.values())


def test_a_line_of_the_log_is_json_also_with_a_trace():
    try:
        raise ValueError("what happened")
    except ValueError:
        import sys as system

        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "it %s", ("broke",), system.exc_info()
        )
    record.code = "BROKEN"

    line = json.loads(JsonLines().format(record))

    assert (line["event"], line["level"], line["code"]) == ("it broke", "error", "BROKEN")
    assert "what happened" in line["trace"]


def test_a_port_that_is_taken_is_said_so(tmp_path, service):
    port = httpx.URL(service.url).port
    words = [
        sys.executable,
        "-m",
        "admitone",
        "--home",
        str(tmp_path),
        "serve",
        "--port",
        str(port),
    ]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)

    assert done.returncode == 3
    assert b"--port 0" in done.stderr
