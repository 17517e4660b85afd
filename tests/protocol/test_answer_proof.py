"""An answer with its sketches, its marks and a recount of the archive: within its bounds, or refused."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from admitone.analytics import open_sketch_reader
from admitone.core.errors import AdmitoneError, IntegrityError
from admitone.core.sketches import SketchBytes, WindowSketch
from admitone.evidence import verify_receipt
from admitone.ops import answer_proof as module
from admitone.ops.answer_proof import answer_proof, refuse_outside
from admitone.ops.stores import Stores
from admitone.settings import Settings
from tests.support.command_line import Cli, cli
from tests.support.homes import count_everything, fill
from tests.support.pipeline import Pipeline, event

__all__ = ["cli"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    made = fill(tmp_path_factory.mktemp("shop"), 1_500)
    count_everything(made)
    return made


def lists(settings: Settings) -> list[tuple[str, str | None]]:
    kept = open_sketch_reader(settings).kept_values()
    grouped = [
        (dimension, f"{attribute}={values.listed[0]}")
        for (dimension, attribute), values in kept.items()
        if values.listed
    ]
    return [(dimension, None) for dimension in ("url", "productId", "purchase")] + grouped[:4]


def test_every_list_is_borne_out_by_the_archive(settings: Settings) -> None:
    tried = 0
    for dimension, where in lists(settings):
        for window in ("1d", "all", "1h"):
            try:
                found: Any = answer_proof(Stores(settings), dimension, window, where, 10)
            except AdmitoneError as error:
                assert "no list" in error.problem or "There is no" in error.problem
                continue
            assert found["outside"] == [], (dimension, where, window)
            assert found["recount"] or not found["answer"]["total"]
            assert verify_receipt.check_answer(found)
            tried += 1
    assert tried >= 9


def test_the_sketches_are_those_that_were_asked(settings: Settings) -> None:
    found = answer_proof(Stores(settings), "url", "1d", None, 5)
    parts = (base64.b64decode(found["sketches"][name]) for name in ("count_min", "space_saving", "totals"))  # type: ignore[literal-required]  # fmt: skip
    sketch = WindowSketch.from_bytes(SketchBytes(*parts))

    assert sketch.total == found["answer"]["total"]
    for line in found["answer"]["items"]:
        assert sketch.bounds(line["item"])[:2] == (line["lower"], line["upper"])
    assert len(found["rules"]) == 1
    assert {mark["topic"] for mark in found["marks"]} == {"admitted.traffic"}


def test_what_is_not_counted_yet_or_came_late_is_left_out(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1}, topk={"lateness": 60_000})

    def admitted(name: str, at: str) -> None:
        pipeline.ingest(event(name, time=f"2026-01-05T{at}Z"))
        pipeline.run()

    admitted("a", "10:00:30")
    admitted("b", "10:30:00")
    admitted("late", "10:00:31")
    count_everything(pipeline.settings)
    admitted("c", "10:40:00")
    found = answer_proof(Stores(pipeline.settings), "url", "all", None, None)

    assert (found["recounted_total"], found["outside"]) == (2, [])
    assert found["answer"]["late"] == 1


def test_an_answer_that_the_archive_does_not_bear_out_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more(*_: Any) -> Counter[str]:
        return Counter({"/home/page-0": 10**9})

    monkeypatch.setattr(module, "recount", more)
    found = json.loads(json.dumps(answer_proof(Stores(settings), "url", "1d", None, 3)))
    assert len(found["outside"]) == 4
    with pytest.raises(IntegrityError, match="does not bear the answer out"):
        refuse_outside(found)
    with pytest.raises(verify_receipt.Wrong):
        verify_receipt.check_answer(found)


def test_the_command_writes_the_file_and_says_so(
    settings: Settings, tmp_path: Path, cli: Cli
) -> None:
    file = tmp_path / "answer.json"
    asked = ("--dimension", "url", "--window", "1d", "--proof", str(file))
    done = cli("top", *asked, "--home", str(settings.home))
    assert done.code == 0
    assert "every item lies within its bounds" in done.err
    assert verify_receipt.check_answer(json.loads(file.read_bytes()))
