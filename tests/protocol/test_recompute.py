"""TOP-10: counting everything again beside the live store, and taking its place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from admitone.analytics import open_sketch_store
from admitone.analytics.port import SketchStore
from admitone.analytics.recompute.comparison import compare
from admitone.analytics.recompute.rebuild import Recomputed, recompute
from admitone.analytics.recompute.record_sources import FromArchive, FromLog, RecordSource
from admitone.core.errors import IntegrityError
from admitone.core.windows import parse_window
from admitone.demo.traffic import GeneratorOptions, generate
from admitone.evidence import open_evidence_store
from admitone.infra.crash_points import RECOMPUTE_POINTS, VARIABLE
from admitone.results import open_answers
from admitone.settings import Settings, load_settings
from admitone.transport.port import OUTGOING_SCHEMA
from tests.support.counted import sketch_in
from tests.support.counting import count_all, count_next
from tests.support.logs import delete_topic, truncate
from tests.support.pipeline import Pipeline, event

GLOBAL = parse_window("global")


def from_log(pipeline: Pipeline, settings: Settings | None = None) -> RecordSource:
    return FromLog(settings or pipeline.settings, pipeline.transport)


def from_archive(pipeline: Pipeline, settings: Settings | None = None) -> RecordSource:
    store = open_evidence_store(pipeline.settings)
    return FromArchive(settings or pipeline.settings, pipeline.ledger, store)


Source = Callable[..., RecordSource]
SOURCES = pytest.mark.parametrize("source", [from_log, from_archive])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated traffic, decided and counted."""
    home = tmp_path_factory.mktemp("template")
    made = Pipeline(home)
    options = GeneratorOptions(800, seed=12, late=0.05, rate=0.25)
    made.ingest(*(delivery.line for delivery in generate(options)))
    made.run()
    store = open_sketch_store(made.settings)
    count_all(made.settings, store, offsets=70)
    store.close()
    made.transport.close()
    return home


@pytest.fixture
def pipeline(template: Path, tmp_path: Path) -> Pipeline:
    shutil.copytree(template, tmp_path / "home")
    return Pipeline(tmp_path / "home")


def again(
    pipeline: Pipeline, source: Source, *, accept: bool = False, settings: Settings | None = None
) -> Recomputed:
    chosen = settings or pipeline.settings
    return recompute(chosen, source(pipeline, chosen), accept=accept, report=lambda *_: None)


def contents(store: SketchStore) -> dict[str, Any]:
    state = store.state()
    return {
        "marks": sorted((m.topic_id, m.partition, m.offset) for m in state.marks),
        "clock": state.clock,
        "windows": store.windows(),
        "upstream": store.upstream_marks(),
        "values": store.kept_values(),
        "sketches": {
            (window, name): (sketch.total, sketch.late, sketch.countmin.cells.tobytes())
            for name, windows in store.changes(-1, -1).lists.items()
            for window, sketch in store.sketches(windows, name)
        },
    }


@SOURCES
def test_counted_again_it_is_the_same_and_the_switch_is_a_new_life_of_the_store(
    pipeline: Pipeline, source: Source
) -> None:
    store = open_sketch_store(pipeline.settings)
    before, state = contents(store), store.state()
    done = again(pipeline, source)
    after = store.state()

    assert done.switched
    assert (done.comparison.differing, done.comparison.told) == (0, [])
    assert done.comparison.windows > 500
    assert done.comparison.items > 1_000
    assert contents(store) == before
    assert after.generation > state.generation
    assert after.revision > state.revision
    assert not list(pipeline.settings.home.glob("data/*.recomputing*"))


@SOURCES
def test_counting_goes_on_where_the_recomputation_ended(pipeline: Pipeline, source: Source) -> None:
    store = open_sketch_store(pipeline.settings)
    again(pipeline, source)
    before = sketch_in(store, GLOBAL, "url").total
    pipeline.ingest(event("new", time="2026-01-01T00:29:00Z"))
    pipeline.run()
    count_all(pipeline.settings, store)

    assert sketch_in(store, GLOBAL, "url").total == before + 1


@SOURCES
def test_what_waits_to_be_counted_is_left_for_the_pipeline(
    pipeline: Pipeline, source: Source
) -> None:
    pipeline.ingest(event("waiting", time="2026-01-01T00:29:00Z"))
    pipeline.run()
    store = open_sketch_store(pipeline.settings)
    before = contents(store)

    assert again(pipeline, source).switched
    assert contents(store) == before
    count_all(pipeline.settings, store)
    assert contents(store) != before


@SOURCES
def test_a_store_that_was_lost_is_made_again(pipeline: Pipeline, source: Source) -> None:
    store = open_sketch_store(pipeline.settings)
    before = contents(store)
    store.close()
    for file in (pipeline.settings.home / "data").glob("analytics.db*"):
        file.unlink()
    done = again(pipeline, source)
    found = contents(open_sketch_store(pipeline.settings))

    assert done.switched
    assert done.was_empty
    for part in ("marks", "clock", "windows", "sketches"):
        assert found[part] == before[part]


def test_what_was_written_to_the_log_twice_is_counted_once_again(pipeline: Pipeline) -> None:
    transport, topic = pipeline.transport, pipeline.transport.topic("admitted.traffic")
    epoch = transport.init_producer("somebody")
    table = pa.Table.from_batches(list(transport.read(topic, 0, 5, 60)))
    transport.append("somebody", epoch, {topic.name: table.select(OUTGOING_SCHEMA.names)})
    store = open_sketch_store(pipeline.settings)
    count_all(pipeline.settings, store)
    before = contents(store)

    assert again(pipeline, from_log).switched
    assert contents(store) == before


@SOURCES
def test_a_difference_is_told_and_stops_the_switch_unless_it_is_accepted(
    pipeline: Pipeline, source: Source
) -> None:
    store = open_sketch_store(pipeline.settings)
    before = contents(store)
    database = store._database  # type: ignore[attr-defined]
    with database.transaction() as db:
        (key, meta) = db.execute(
            "SELECT key, value FROM state WHERE key = 'meta:v1:global:url'"
        ).fetchone()
        total = before["sketches"][GLOBAL, "url"][0]
        wrong = meta.replace(f'"total":{_stored(store)}'.encode(), b'"total":1')
        assert wrong != meta
        db.execute("UPDATE state SET value = ? WHERE key = ?", (wrong, key))
    spoiled = contents(store)
    refused = again(pipeline, source)

    assert not refused.switched
    assert any(told.startswith("global url: total") for told in refused.comparison.told)
    assert contents(store) == spoiled
    assert again(pipeline, source, accept=True).switched
    assert contents(store) == before
    assert before["sketches"][GLOBAL, "url"][0] == total


def _stored(store: SketchStore) -> int:
    from admitone.analytics.sqlite.sketch_reader import StateRows
    from admitone.core.sketches import Meta

    with store._database.snapshot() as db:  # type: ignore[attr-defined]
        meta = StateRows(db).meta("global", "url")
    assert meta is not None
    return Meta.from_bytes(meta).total


def test_another_shape_of_the_sketches_needs_and_gets_a_recomputation(pipeline: Pipeline) -> None:
    other = load_settings(
        pipeline.settings.home,
        topk={"width": 256, "depth": 3, "k": 20},
        transport={"raw_partitions": 2},
    )
    store = open_sketch_store(pipeline.settings)
    totals = {place: found[:2] for place, found in contents(store)["sketches"].items()}
    done = again(pipeline, from_log, settings=other)
    changed = open_sketch_store(other)

    assert done.switched
    assert changed.state().parameters.sketch[:2] == (256, 3)
    assert {p: found[:2] for p, found in contents(changed)["sketches"].items()} == totals


def test_a_log_that_lost_its_beginning_is_not_enough(pipeline: Pipeline) -> None:
    topic = pipeline.transport.topic("admitted.traffic")
    end = pipeline.transport.ends(topic)[0]
    truncate(pipeline.transport, topic, 0, end)

    with pytest.raises(IntegrityError, match=f"first {end} offsets of partition 0") as refused:
        again(pipeline, from_log)
    assert "recompute --from-archive" in refused.value.remedy
    assert again(pipeline, from_archive).switched


def test_a_topic_that_is_gone_is_not_enough_but_its_archive_is(pipeline: Pipeline) -> None:
    store = open_sketch_store(pipeline.settings)
    before = contents(store)
    delete_topic(pipeline.transport, "admitted.traffic")

    with pytest.raises(IntegrityError, match="gone or was recreated"):
        again(pipeline, from_log)
    assert again(pipeline, from_archive).switched
    assert contents(store) == before


def test_answers_do_not_change_while_it_runs_and_the_live_store_goes_on(
    pipeline: Pipeline,
) -> None:
    pipeline.ingest(*(event(f"more{n}", time="2026-01-01T00:29:00Z") for n in range(40)))
    pipeline.run()
    live = open_sketch_store(pipeline.settings)
    before = sketch_in(live, GLOBAL, "url").total
    seen = []

    class Watched(FromLog):
        def count(self, into: Any, store: Any, target: Any, report: Any) -> None:
            answers = open_answers(pipeline.settings)
            seen.append((len(target), answers.top("url", "all")["total"]))
            answers.close()
            super().count(into, store, target, report)
            if len(seen) < 3:
                count_next(pipeline.settings, live, pipeline.transport, 3)

    watched = Watched(pipeline.settings, pipeline.transport)
    done = recompute(pipeline.settings, watched, accept=False, report=lambda *_: None)

    assert done.switched
    totals = [total for _, total in seen]
    assert len(totals) == 3
    assert totals[0] == before < totals[1] < totals[2] == sketch_in(live, GLOBAL, "url").total
    count_all(pipeline.settings, live)
    assert sketch_in(live, GLOBAL, "url").total == before + 40


@SOURCES
def test_what_the_live_store_counts_while_the_records_are_read_is_not_lost(
    pipeline: Pipeline, source: Source
) -> None:
    pipeline.ingest(*(event(f"more{n}", time="2026-01-01T00:29:00Z") for n in range(40)))
    pipeline.run()
    live = open_sketch_store(pipeline.settings)
    before, told = sketch_in(live, GLOBAL, "url").total, []

    def go_on(what: str, records: int) -> None:
        told.append(what)
        if told == ["counting"]:
            count_next(pipeline.settings, live, pipeline.transport, 3)

    chosen = source(pipeline, pipeline.settings)
    done = recompute(pipeline.settings, chosen, accept=False, report=go_on)

    assert (done.switched, done.comparison.told) == (True, [])
    assert sketch_in(live, GLOBAL, "url").total > before
    count_all(pipeline.settings, live)
    assert sketch_in(live, GLOBAL, "url").total == before + 40


@pytest.mark.parametrize("point", RECOMPUTE_POINTS)
def test_a_crash_on_the_way_leaves_the_live_store_as_it_was(pipeline: Pipeline, point: str) -> None:
    store = open_sketch_store(pipeline.settings)
    before, state = contents(store), store.state()
    home = str(pipeline.settings.home)
    command = [sys.executable, "-m", "admitone", "recompute", "--home", home, "--json"]
    struck = subprocess.run(
        command, env={VARIABLE: f"{point}@1:kill", "PATH": ""}, capture_output=True, check=False
    )

    assert struck.returncode == -9
    assert contents(store) == before
    assert (store.state() == state) is (point != "recompute.switched")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert contents(store) == before


def test_two_stores_that_counted_differently_are_told_apart(tmp_path: Path) -> None:
    pipelines = [Pipeline(tmp_path / name) for name in "ab"]
    for number, made in enumerate(pipelines):
        made.ingest(*(event(f"e{n}", {"url": f"/{n}"}) for n in range(3 + number)))
        made.run()
        store = open_sketch_store(made.settings)
        count_all(made.settings, store)
        store.close()
    one, other = (open_sketch_store(made.settings) for made in pipelines)

    assert compare(one, one).differing == 0
    found = compare(one, other)
    assert found.differing == 6
    assert "minute_202601051000 url: total and late are (3, 0) and (4, 0)" in found.told
