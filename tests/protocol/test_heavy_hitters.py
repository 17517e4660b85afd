"""Answers against an oracle that counted everything exactly: through the boundary, over a log that holds things
twice, in batches of any size, with crashes in between."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from admitone.analytics import item_rules, open_sketch_store
from admitone.core.errors import MarkMoved, NotFound
from admitone.core.sketches import SketchParameters, WindowSketch
from admitone.core.windows import KINDS
from admitone.demo.check import kept_windows
from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.results.answers import Answers
from admitone.transport.port import OUTGOING_SCHEMA
from tests.support.counting import count_next
from tests.support.pipeline import Pipeline

EVENTS = {0.7: 23_000, 1.0: 6_000, 1.2: 6_000}
K = {0.7: 100, 1.0: 20, 1.2: 20}
"""Small enough tables that the steeper distributions, which have fewer different items, do not fit them either."""
WINDOWS_COMPARED = 12


class Interrupted(Exception):
    """Somebody pulled the plug inside the store's transaction."""


@pytest.mark.parametrize("zipf", [0.7, 1.0, 1.2])
def test_every_true_count_is_within_its_bounds_and_nothing_heavy_is_left_out(
    zipf: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, truth = decided(tmp_path, zipf)
    chances = random.Random(zipf)
    store = open_sketch_store(pipeline.settings)
    again = write_again(pipeline, chances)
    interruptions, passages = 0, count(1)

    def interrupt_every_third(point: str) -> None:
        if next(passages) % 3 == 2:
            raise Interrupted(point)

    monkeypatch.setattr("admitone.analytics.sqlite.sketch_store.crash_point", interrupt_every_third)
    more = True
    while more:
        try:
            more = count_next(
                pipeline.settings, store, pipeline.transport, chances.randint(200, 2_500)
            )
        except Interrupted:
            interruptions += 1
    monkeypatch.undo()

    answers = Answers(store, item_rules(pipeline.settings))
    compared, inexact, judged, problems = compare(answers, truth)
    assert problems == []
    assert compared > 500
    assert inexact > 0
    assert judged > 0
    assert interruptions > 0
    assert sum(mark.replayed for mark in store.state().marks) == again
    store.close()


def decided(home: Path, zipf: float) -> tuple[Pipeline, Truth]:
    """Return a pipeline that has admitted generated traffic, and the truth about it."""
    pipeline = Pipeline(home, topk={"k": K[zipf]})
    options = GeneratorOptions(EVENTS[zipf], seed=round(zipf * 10), zipf=zipf, late=0.02)
    recorder = TruthRecorder(options)
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))))
    pipeline.run()
    return pipeline, recorder.truth()


def write_again(pipeline: Pipeline, chances: random.Random) -> int:
    """Write a stretch of each admitted partition to it once more; return how many records."""
    transport = pipeline.transport
    topic = transport.topic("admitted.traffic")
    epoch = transport.init_producer("somebody")
    written = 0
    for partition, end in enumerate(transport.ends(topic)):
        start = chances.randrange(end // 2)
        table = pa.Table.from_batches(list(transport.read(topic, partition, start, end)))
        transport.append("somebody", epoch, {topic.name: table.select(OUTGOING_SCHEMA.names)})
        written += table.num_rows
    return written


def compare(answers: Answers, truth: Truth) -> tuple[int, int, int, list[str]]:
    """Return how many answers were compared, were not exact, were judged by their recall, and what is wrong."""
    compared, inexact, judged, problems = 0, 0, 0, []
    chosen = random.Random(3)
    for name in truth.lists:
        dimension, _, where = name.partition("|")
        for kind in KINDS:
            windows = kept_windows(truth, name, kind)
            for window in chosen.sample(windows, min(len(windows), WINDOWS_COMPARED)):
                try:
                    answer = answers.top(dimension, window, where or None)
                except NotFound as missing:
                    problems.append(missing.problem)
                    continue
                compared += 1
                inexact += answer["error_bound"] > 0
                problems += truth.check_top(answer)
                counts, _, _ = truth.exact(window, name)
                lost = missed(counts, answer)
                judged += lost is not None
                problems += lost or []
                if not where:
                    problems += wrong_items(answers, answer["item_type"], window, counts, chosen)
    return compared, inexact, judged, problems


def missed(counts: dict[str, int], answer: Any) -> list[str] | None:
    """Say so when recall@K is below 1 although the K-th count is above twice the stated error; None below that."""
    k = answer["k"]
    ranked = sorted(counts.values(), reverse=True)
    if len(ranked) < k or ranked[k - 1] <= 2 * answer["error_bound"] / 100 * answer["total"]:
        return None
    heavy = {item for item, count in counts.items() if count >= ranked[k - 1]}
    found = {line["item"] for line in answer["items"][:k]}
    return [] if found <= heavy else [f"{answer['window']}: {len(found & heavy)} of {k} recalled"]


def wrong_items(
    answers: Answers, item_type: str, window: str, counts: dict[str, int], chosen: random.Random
) -> list[str]:  # fmt: skip
    """Say so when an item, listed or not, is outside the bounds it is answered with."""
    sample = chosen.sample(sorted(counts), min(len(counts), 3))
    found = {item: answers.item(item_type, item, window) for item in sample}
    return [
        f"{window} {item}: {counts[item]} is not within {answer['lower']} and {answer['upper']}"
        for item, answer in found.items()
        if not answer["lower"] <= counts[item] <= answer["upper"]
    ]


def test_two_batches_planned_from_the_same_marks_are_counted_once(tmp_path: Path) -> None:
    pipeline, _ = decided(tmp_path, 1.2)
    stores = [open_sketch_store(pipeline.settings) for _ in range(2)]
    plans = [stores[0].marks(), stores[1].marks()]
    assert plans[0] == plans[1]
    commit = stores[1].commit

    def first_another_commits(batch: Any) -> int:
        count_next(pipeline.settings, stores[0], pipeline.transport, 500)
        return commit(batch)

    stores[1].commit = first_another_commits  # type: ignore[method-assign]
    with pytest.raises(MarkMoved):
        count_next(pipeline.settings, stores[1], pipeline.transport, 900)

    totals = {mark.counted for mark in stores[0].state().marks}
    assert max(totals) <= 500


@pytest.mark.parametrize("zipf", [0.7, 1.0, 1.2])
def test_more_items_than_a_table_holds_stay_within_their_bounds(zipf: float) -> None:
    rng = np.random.default_rng(7)
    weights = np.arange(1, 20_001, dtype=np.float64) ** -zipf
    draws = rng.choice(20_000, size=300_000, p=weights / weights.sum())
    whole = WindowSketch(SketchParameters().widened())
    for minute in np.array_split(draws, 30):
        items, counts = np.unique(minute, return_counts=True)
        sketch = WindowSketch(SketchParameters())
        sketch.update({f"item {i}": int(c) for i, c in zip(items, counts, strict=True)})
        whole.merge(WindowSketch.from_bytes(sketch.to_bytes()))
    true = np.bincount(draws, minlength=20_000)

    listed, unlisted = whole.ranking(100)
    named = {entry.item for entry in listed}
    assert whole.total == 300_000
    assert whole.summary.offset > 0
    for item, times in enumerate(true.tolist()):
        lower, upper = whole.bounds(f"item {item}")
        assert lower <= times <= upper
        assert times <= unlisted or f"item {item}" in named
    error = max(entry.upper - entry.lower for entry in listed)
    hundredth = int(np.sort(true)[-100])
    assert error > 0
    if hundredth > 2 * error:
        assert {f"item {item}" for item in np.flatnonzero(true > hundredth)} <= named
    assert hundredth > 2 * error or zipf < 1
