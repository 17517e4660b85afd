"""Stores of every released format are opened by the present program, and give the answers they gave then."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from admitone.analytics import open_sketch_store
from admitone.cli.app import app
from admitone.ledger import open_ledger
from admitone.settings import load_settings
from tests.formats.make_stores import QUESTIONS, parsed
from tests.servers.postgres import PostgresServer, find_binaries
from tests.servers.redis import PASSWORD, RedisServer

HERE = Path(__file__).parent
FORMATS = sorted(folder.name for folder in HERE.glob("v*"))


def unpacked(name: str, into: Path) -> dict[str, Any]:
    """Lay a kept home folder out; return the answers it gave."""
    with tarfile.open(HERE / name) as archive:
        archive.extractall(into, filter="data")
    answers: dict[str, Any] = json.loads((into / "answers.json").read_text())
    return answers


def restored(server: PostgresServer, dump: Path, database: str) -> str:
    """Run the statements of a dump in a database of its own; return its URL."""
    with server.administrator() as admin:
        admin.execute(f"CREATE DATABASE {database} OWNER admitone TEMPLATE template0")
    url, binaries = server.url(database, "kept"), find_binaries()
    assert binaries is not None
    subprocess.run(
        [binaries / "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={url}", f"--file={dump}"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return url


def refilled(server: RedisServer, content: dict[str, Any]) -> str:
    """Put keys into an empty database of a Redis; return its URL."""
    url = server.new_database()
    with server.client(url) as client:
        for key, value in content.items():
            if isinstance(value, dict):
                client.hset(key, mapping=value)
            elif isinstance(value, list):
                client.zadd(key, dict(value))
            else:
                client.set(key, value)
    return url


@pytest.fixture(params=FORMATS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def services(
    version: str,
    tmp_path: Path,
    postgres_server: PostgresServer,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[dict[str, Any], redis.Redis]]:
    said = unpacked(f"{version}/services.tar.xz", tmp_path)
    results = refilled(redis_server, json.loads((tmp_path / "redis.json").read_text()))
    for name, value in {
        "LEDGER__URL": restored(postgres_server, tmp_path / "ledger.sql", f"ledger_{version}"),
        "HISTORY__KIND": "postgresql",
        "HISTORY__URL": restored(postgres_server, tmp_path / "history.sql", f"history_{version}"),
        "RESULTS__KIND": "redis",
        "RESULTS__URL": results,
        "RESULTS__PASSWORD": PASSWORD,
    }.items():
        monkeypatch.setenv(f"ADMITONE_{name}", value)
    with redis_server.client(results) as client:
        yield said, client
    with postgres_server.administrator() as admin:
        admin.execute(f"DROP DATABASE ledger_{version} WITH (FORCE)")
        admin.execute(f"DROP DATABASE history_{version} WITH (FORCE)")


def ask(home: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["--home", str(home), *words])
    return done.exit_code, done.stdout


def brought_up_to_date(home: Path) -> None:
    """Open ledger and sketches as every command does that writes; what only reads older ones refuses them."""
    settings = load_settings(home)
    ledger = open_ledger(settings)
    ledger.runs()
    ledger.close()
    open_sketch_store(settings).close()


def differing(home: Path, said: dict[str, Any]) -> list[str]:
    """Return the questions that are answered otherwise; an answer may have gained fields."""
    found = {name: parsed(ask(home, *words)[1]) for name, words in QUESTIONS.items()}
    return [name for name, answer in said.items() if not holds(found[name], answer)]


PROSE = {"evidence", "compared", "notes"}
"""What says in words how much was looked at: more is, with every version."""
NAMED_BY = "what"


def holds(now: Any, then: Any) -> bool:
    """Tell whether an answer still says all it said; of things that were compared there may be more by now."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(
            key in now and (holds(now[key], value) or key in PROSE) for key, value in then.items()
        )
    if isinstance(then, list) and then and all(isinstance(e, dict) and NAMED_BY in e for e in then):
        by_name = {each[NAMED_BY]: each for each in now}
        return all(holds(by_name.get(each[NAMED_BY]), each) for each in then)
    if isinstance(then, list):
        return len(now) == len(then) and all(map(holds, now, then))
    return bool(now == then)


def test_an_answer_that_lost_or_changed_something_is_noticed():
    assert holds({"a": [1, {"b": 2, "c": 3}]}, {"a": [1, {"b": 2}]})
    assert not holds({"a": [1, {"b": 3}]}, {"a": [1, {"b": 2}]})
    assert not holds({"a": [1]}, {"a": [1, 2]})
    assert not holds({}, {"a": None})
    assert holds([{"what": "a", "n": 1}, {"what": "b"}], [{"what": "b"}])
    assert not holds([{"what": "a"}], [{"what": "b"}])


def test_embedded_stores_give_the_answers_they_gave(version, tmp_path):
    said = unpacked(f"{version}/embedded.tar.xz", tmp_path)
    brought_up_to_date(tmp_path)

    assert differing(tmp_path, said) == []


def test_stores_in_services_give_the_answers_they_gave(services, tmp_path):
    said, _ = services
    brought_up_to_date(tmp_path)

    assert differing(tmp_path, said) == []


@pytest.mark.parametrize("stores", ["embedded", "services"])
def test_what_was_unknown_then_is_found_on_the_log_now(version, stores, tmp_path, request):
    if stores == "services":
        request.getfixturevalue("services")
    else:
        unpacked(f"{version}/embedded.tar.xz", tmp_path)

    code, _ = ask(tmp_path, "reconcile")
    rows = parsed(ask(tmp_path, "decisions", "--run", "open", "--jsonl")[1])

    assert code == 0
    assert not [row for row in rows if row["verdict"] == "AMBIGUOUS"]
    assert [row["verdict"] for row in rows if (row["event_id"] or "").startswith("lost")] == [
        "ADMITTED"
    ]
