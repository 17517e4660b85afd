"""Every stored window names the rules it was counted under, and an answer tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from admitone.analytics import open_sketch_reader
from admitone.core.windows import parse_window
from admitone.governance.rules_in_force import rules_in_force
from admitone.results import open_answers
from admitone.settings import Settings
from tests.support.homes import count_everything
from tests.support.pipeline import Pipeline, event


def counted(home: Path, at: str, **topk: Any) -> Settings:
    """Admit one event at a time of the day, and count it under these parameters."""
    pipeline = Pipeline(home, transport={"raw_partitions": 1}, topk=topk)
    pipeline.ingest(event(at, time=f"2026-01-05T{at}:00Z"))
    pipeline.run()
    count_everything(pipeline.settings)
    return pipeline.settings


def test_a_window_names_every_set_of_rules_it_was_counted_under(tmp_path: Path) -> None:
    before = counted(tmp_path, "10:00")
    after = counted(tmp_path, "11:00", k=7)
    one, other = (rules_in_force(settings).hash.hex() for settings in (before, after))
    assert one != other
    reader = open_sketch_reader(after)
    assert {each.hex() for each in reader.rules()} == {one, other}
    hours = ("hour_2026010510", "hour_2026010511", "day_20260105")
    named = {key: reader.rules_of(parse_window(key)) for key in hours}
    assert named == {
        "hour_2026010510": [one],
        "hour_2026010511": [other],
        "day_20260105": sorted([one, other]),
    }
    answers = open_answers(after)
    told = answers.top("url", "day_20260105", None, None)
    assert told["parameters"]["rules"] == sorted([one, other])
