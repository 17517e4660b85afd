"""Home folders with decided and counted traffic, made without Spark; and the service running over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from admitone.analytics import item_rules, open_sketch_reader, open_sketch_store
from admitone.analytics.batch_counter import BatchCounter
from admitone.demo.traffic import GeneratorOptions, generate
from admitone.infra.clock import wall_clock
from admitone.ops.tokens import Role, new_token
from admitone.results import open_outlets
from admitone.results.publisher import publish
from admitone.settings import FILE_NAME, Settings
from admitone.transport import open_transport
from tests.servers import service
from tests.servers.service import Running
from tests.support.described import described_api
from tests.support.pipeline import Pipeline

NEWEST_MS = 1_767_609_050_000
"""2026-01-05T10:30:50Z, when the traffic ends: nothing depends on when a test runs, and the newest minute is full."""
_CONFIGURATION = """\
[pipeline]
run_id = "shop"
quarantine_limit = 1.0

[transport]
raw_partitions = 2
"""


def count_everything(settings: Settings) -> None:
    """Count what is on the admitted topics, as the counting query does."""
    transport, store = open_transport(settings), open_sketch_store(settings)
    topics = [transport.topic(entry.topic) for entry in settings.topics]
    counting = BatchCounter(store, settings, {topic.name: topic.topic_id for topic in topics})
    marks = store.marks()
    for topic in topics:
        for partition, end in enumerate(transport.ends(topic)):
            start = marks.get((topic.topic_id, partition), -1) + 1
            for batch in transport.read(topic, partition, start, end):
                plan, now = counting.plan(), wall_clock()
                deltas = counting.count(plan, [batch], now)
                store.commit(counting.gather(plan, deltas, now, {}))
    store.close()


def publish_everything(settings: Settings) -> None:
    """Write what was counted to Redis, as the counting query does."""
    reader = open_sketch_reader(settings)
    for outlet in open_outlets(settings):
        publish(reader, item_rules(settings), outlet)
        outlet.close()
    reader.close()


def fill(home: Path, events: int = 3_000, seed: int = 5, **options: Any) -> Settings:
    """Make traffic with duplicates, contradictions and malformed events; decide and count all of it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / FILE_NAME).write_text(_CONFIGURATION)
    pipeline = Pipeline(home)
    made = GeneratorOptions(
        events,
        seed=seed,
        run="shop",
        end_ms=NEWEST_MS,
        **{"contradictions": 0.002, "malformed": 0.003, "late": 0.01, **options},
    )
    pipeline.ingest(*(delivery.line for delivery in generate(made)), run="shop")
    pipeline.run()
    count_everything(pipeline.settings)
    return pipeline.settings


class Service(Running):
    """One to whose clients no answer is given that is not as described."""

    def client(self, **options: Any) -> httpx.Client:
        hooks = {"response": [described_api().check]}
        return super().client(event_hooks=hooks, **options)


def start_service(home: Path, port: int = 0, fault: str | None = None, **env: str) -> Service:
    """Start `admitone serve` and return once it answers."""
    running = service.start_service(home, port, fault, **env)
    return Service(running.process, running.url, running.log)


@contextmanager
def serving(home: Path, **env: str) -> Iterator[Service]:
    """Serve a home folder for as long as it is needed."""
    running = start_service(home, **env)
    try:
        yield running
    finally:
        running.stop()


def lanes_of(pid: int) -> list[int]:
    """Return the running workers of a door."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if said_of(int(folder.name))[1:2] == [str(pid)] and _runs_a_lane(folder)
    ]


def said_of(pid: int) -> list[str]:
    """Return what the system says of a process, from its state on; nothing of one that has ended."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if said[0] == "Z" else said


def _runs_a_lane(folder: Path) -> bool:
    try:
        return b"admitone.service.door.lane" in (folder / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def home_with_tokens(home: Path) -> dict[str, str]:
    """Write a configuration with a token of each role; return the tokens."""
    tokens, lines = {}, []
    for role in Role:
        made = new_token(f"{role}er", role)
        tokens[str(role)] = made["token"]
        entry = "\n".join(f'{name} = "{value}"' for name, value in made["entry"].items())
        lines.append(f"[[access.tokens]]\n{entry}\n")
    (home / "admitone.toml").write_text("\n".join(lines))
    return tokens
