"""Makes small stores in the present formats, with the answers they give: run once for each released format.

    python -m tests.formats.make_stores tests/formats/v1

Every store holds the same story: a run with every kind of decision, partly released and discarded; a closed run;
a block of unknown fate that in truth is on the log, and one that was found there; a deduplicated topic.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from admitone.core.errors import ServiceUnreachable
from tests.servers.postgres import PostgresServer, find_binaries
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.flaky import Flaky
from tests.support.pipeline import Pipeline, event

CONFIGURATION = """\
[pipeline]
quarantine_limit = 1.0
[transport]
raw_partitions = 2
[topk]
k = 10
width = 64
depth = 3
lateness = "1m"
[dedup]
partitions = 2
key = "field"
key_fields = ["metadata.eventId"]
[[topics]]
family = "traffic"
topic = "admitted.traffic"
event_types = ["page_view", "product_view", "api_request", "search", "purchase"]
partitions = 2
key_fields = ["metadata.partitionKey"]
[[items]]
event_type = "page_view"
dimension = "url"
item = "url"
item_type = "url"
group_by = ["deviceType"]
"""
QUESTIONS = {
    "books": ["books", "--json"],
    "decisions": ["decisions", "--jsonl"],
    "quarantine": ["quarantine", "list", "--json"],
    "verify": ["verify", "closed", "--json"],
    "gate": ["close", "open", "--dry-run", "--json"],
    "receipt": ["receipt", "clean-0", "--run", "closed", "--json"],
    "top": ["top", "--dimension", "url", "--window", "all", "--json"],
    "item": ["item", "url", "/a", "--window", "all", "--json"],
    "windows": ["windows", "--dimension", "url", "--json"],
}


def ask(home: Path, *words: str, data: str | None = None) -> str:
    """Return what a command prints; a red run and an ambiguity that remains are answers too."""
    done = subprocess.run(
        [sys.executable, "-m", "admitone", "--home", str(home), *words],
        input=data, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 5, 6):
        raise SystemExit(f"{' '.join(words)}: {done.returncode}\n{done.stderr}")
    return done.stdout


def tell_the_story(home: Path) -> None:
    """Fill the stores of a home folder."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    lines = ask(
        home, "generate", "--events", "150", "--contradictions", "0.05", "--malformed", "0.1"
    )
    ask(home, "ingest", "-", "--run", "open", data=lines)
    clean = [event(f"clean-{number}", {"url": f"/{number % 3}"}, now) for number in range(6)]
    ask(home, "ingest", "-", "--run", "closed", data=b"\n".join([*clean, clean[0]]).decode())
    ask(home, "run", "--until-idle")
    ask(home, "quarantine", "release", "--run", "open", "--code", "PAYLOAD_MISMATCH", "--keep-first",
        "--reason", "the first one is right")  # fmt: skip
    ask(
        home,
        "quarantine",
        "discard",
        "--run",
        "open",
        "--code",
        "NOT_JSON",
        "--reason",
        "test data",
    )
    ask(home, "close", "closed")
    for name in ("found", "lost"):
        ask(home, "reconcile")
        pipeline = Pipeline(home)
        pipeline.boundary.transport = Flaky(pipeline.transport, "down-after")  # type: ignore[assignment]
        pipeline.ingest(
            *(event(f"{name}-{number}", {"url": "/a"}, now) for number in range(3)), run="open"
        )
        with suppress(ServiceUnreachable):
            pipeline.run()
        pipeline.ledger.close()
    ask(home, "run", "dedup", "--until-idle")
    ask(home, "run", "analytics", "--until-idle")


def answers(home: Path) -> dict[str, Any]:
    """Return what the commands say about the stores."""
    return {name: parsed(ask(home, *words)) for name, words in QUESTIONS.items()}


def parsed(text: str) -> Any:
    """Return one JSON document, or the documents of lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def redis_content(server: RedisServer, url: str) -> dict[str, Any]:
    """Return what a Redis holds, by key."""
    client = server.client(url)
    return {
        key: client.hgetall(key)
        if client.type(key) == "hash"
        else client.zrange(key, 0, -1, withscores=True)
        if client.type(key) == "zset"
        else client.get(key)
        for key in sorted(client.keys("*"))
    }


def dumped(url: str) -> bytes:
    """Return the statements that make a schema again, under the name `kept`."""
    binaries = find_binaries()
    assert binaries is not None
    schema = unquote(url).rpartition("search_path=")[2]
    command = [binaries / "pg_dump", "--no-owner", f"--schema={schema}", f"--dbname={url}"]
    text = subprocess.run(command, check=True, capture_output=True).stdout
    return text.replace(schema.encode(), b"kept")


def packed(folder: Path, into: Path) -> None:
    """Keep a folder as one file."""
    with tarfile.open(into, "w:xz") as archive:
        archive.add(folder, arcname=".")


def main(destination: Path) -> None:
    """Make both sets of stores."""
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "embedded"
        home.mkdir()
        (home / "admitone.toml").write_text(CONFIGURATION)
        tell_the_story(home)
        _keep(home, destination / "embedded")

        postgres, redis = PostgresServer(durable=False), RedisServer()
        home = Path(temporary) / "services"
        home.mkdir()
        ledger, history, results = (
            postgres.new_schema(),
            postgres.new_schema(),
            redis.new_database(),
        )
        (home / "admitone.toml").write_text(CONFIGURATION)
        os.environ |= {
            "ADMITONE_LEDGER__URL": ledger, "ADMITONE_HISTORY__KIND": "postgresql",
            "ADMITONE_HISTORY__URL": history, "ADMITONE_RESULTS__KIND": "redis",
            "ADMITONE_RESULTS__URL": results, "ADMITONE_RESULTS__PASSWORD": PASSWORD,
        }  # fmt: skip
        tell_the_story(home)
        (home / "ledger.sql").write_bytes(dumped(ledger))
        (home / "history.sql").write_bytes(dumped(history))
        (home / "redis.json").write_text(json.dumps(redis_content(redis, results), indent=1))
        _keep(home, destination / "services")
        postgres.close()
        redis.close()


def _keep(home: Path, name: Path) -> None:
    (home / "answers.json").write_text(json.dumps(answers(home)))
    shutil.rmtree(home / "data/checkpoints", ignore_errors=True)
    (home / "data/spark.log").unlink(missing_ok=True)
    packed(home, name.with_suffix(".tar.xz"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
