"""The whole pipeline with Redis and PostgreSQL behind it, its driver killed on the way, compared with the oracle."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from admitone.analytics import open_sketch_reader
from admitone.core.windows import parse_window
from admitone.demo.check import kept_windows
from admitone.demo.traffic import GeneratorOptions, TruthRecorder, generate
from admitone.infra.crash_points import VARIABLE
from admitone.results.history import HistoryReader
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.pipeline import Pipeline
from tests.support.running import run_pipeline, start_pipeline

EVENTS = 4_000


def test_redis_and_the_history_say_what_is_true(
    redis_server: RedisServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = redis_server.new_database()
    for name, value in {
        "RESULTS__KIND": "redis",
        "RESULTS__URL": url,
        "RESULTS__PASSWORD": PASSWORD,
        "HISTORY__KIND": "postgresql",
        "HISTORY__URL": postgres_url,
        "TOPK__MAX_PER_TRIGGER": "1000",
    }.items():
        monkeypatch.setenv(f"ADMITONE_{name}", value)
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    options = GeneratorOptions(EVENTS, seed=77)
    recorder = TruthRecorder(options)
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))))
    truth = recorder.truth()

    monkeypatch.setenv(VARIABLE, "analytics.committed@2:kill")
    killed = start_pipeline(tmp_path, "--until-idle")
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.delenv(VARIABLE)
    done = run_pipeline(tmp_path)
    assert done.returncode == 0, done.stderr

    client, history = redis_server.client(url), HistoryReader(postgres_url)
    complete = {window for window, is_complete in history.windows().items() if is_complete}
    compared = 0
    for name in truth.lists:
        for kind in ("minute", "hour", "day", "global"):
            for window in kept_windows(truth, name, kind)[-3:]:
                counts, total, late = truth.exact(window, name)
                meta = client.hgetall(f"meta:{window}:{name}")
                assert (int(meta["totalEvents"]), int(meta["late"])) == (total, late)
                listed = client.zrange(f"topk:{window}:{name}", 0, -1, withscores=True)
                kept = history.result(parse_window(window), name)
                assert kept is not None
                assert (kept.total, kept.late) == (total, late)
                assert len(listed) == len(kept.items) == min(len(counts), 100)
                for item, estimate in listed:
                    assert counts[item] == estimate
                for entry in kept.items:
                    assert entry.lower <= counts[entry.item] <= entry.upper
                compared += 1
    assert compared > 100
    reader = open_sketch_reader(pipeline.settings)
    assert {w for w in reader.windows() if w.kind == "minute" and w in complete}
    assert parse_window("global") not in complete
    reader.close()
    client.close()
    history.close()
