"""What went through doors after the ledger was copied is found by the log alone, releases among it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.producers import SYNCHRONOUS_DOOR
from admitone.boundary.restore.read_back import read_back
from admitone.core.errors import IntegrityError
from admitone.core.wire import StreamMetadata
from admitone.evidence import open_evidence_store
from tests.servers.copies import copy_of
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event
from tests.support.read_back import SECTIONS, deliver
from tests.support.released import FUTURE, release_all

pytestmark = pytest.mark.usefixtures("either_ledger")

TOLERANT = {**SECTIONS, "pipeline": {**SECTIONS["pipeline"], "future_tolerance": "50000d"}}


@pytest.fixture
def strict(tmp_path: Path) -> Pipeline:
    """A pipeline that has decided one event and takes none from the future."""
    pipeline = Pipeline(tmp_path, **SECTIONS)
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    return pipeline


@pytest.fixture
def tolerant(strict: Pipeline, tmp_path: Path) -> Callable[[], Pipeline]:
    """Open the same home by rules that take events from the future."""
    return lambda: Pipeline(tmp_path, **TOLERANT)


def at_the_door(pipeline: Pipeline, *lines: bytes) -> list[str]:
    (rows,) = DoorSlot(pipeline.boundary, 0).admit([Delivery(line) for line in lines])
    return [row["verdict"] for row in rows]


def positions_on_the_log(pipeline: Pipeline) -> Counter[StreamMetadata]:
    transport = pipeline.transport
    topic = transport.topic("admitted.traffic")
    keys = [
        key
        for partition, end in enumerate(transport.ends(topic))
        for batch in transport.read(topic, partition, 0, end)
        for key in batch.column("key").to_pylist()
    ]
    found = [StreamMetadata.from_bytes(key) for key in keys]
    return Counter(position for position in found if position is not None)


@pytest.mark.parametrize("copied", ["before the slot was used", "before the release"])
@pytest.mark.parametrize("last_records", [1_000, 2])
def test_a_release_of_what_came_through_the_synchronous_door_is_published_once(
    strict: Pipeline,
    tolerant: Callable[[], Pipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copied: str,
    last_records: int,
) -> None:
    early = copy_of(strict.ledger, strict.settings, tmp_path / "early")
    assert at_the_door(strict, event("f", **FUTURE), event("h", **FUTURE), event("e")) == [
        "QUARANTINED",
        "QUARANTINED",
        "ADMITTED",
    ]
    strict.run()
    later = copy_of(strict.ledger, strict.settings, tmp_path / "later")
    mended = tolerant()
    release_all(mended, event_id="f")
    deliver(mended, [(0, event(f"more{number}")) for number in range(6)])
    mended.run()
    on_log = on_the_log(mended)
    assert on_log.count("f") == 1
    mended.ledger.close()
    strict.ledger.close()
    (early if copied == "before the slot was used" else later)()

    # The releases lie far behind the end of the log, where one looks before anything is admitted.
    monkeypatch.setattr("admitone.boundary.ledger_age._RECORDS_AT_THE_END", last_records)
    behind = tolerant()
    with pytest.raises(IntegrityError, match="reconcile --restored"):
        behind.run()
    read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
    behind.run()
    assert on_the_log(behind) == on_log
    assert at_the_door(behind, event("f", **FUTURE)) == ["DUPLICATE"]
    deliver(behind, [(1, event("f", **FUTURE))])
    release_all(behind)
    behind.run()
    again = on_the_log(behind)
    assert [name for name in again if name != "h"] == on_log
    assert max(positions_on_the_log(behind).values()) == 1
    assert behind.problems() == []


def test_a_slot_that_only_the_log_knows_makes_the_ledger_older(
    strict: Pipeline, tolerant: Callable[[], Pipeline], tmp_path: Path
) -> None:
    restore = copy_of(strict.ledger, strict.settings, tmp_path / "copy")
    assert at_the_door(strict, event("e")) == ["ADMITTED"]
    strict.ledger.close()
    restore()

    behind = tolerant()
    deliver(behind, [(1, event("e"))])
    with pytest.raises(IntegrityError, match="'door' partition 0"):
        behind.run()
    read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
    behind.run()
    assert on_the_log(behind) == ["a", "e"]
    assert behind.problems() == []


@pytest.mark.parametrize("through", ["the stream", "another slot"])
def test_a_door_does_not_take_a_ledger_that_was_lost(tmp_path: Path, through: str) -> None:
    pipeline = Pipeline(tmp_path, **SECTIONS)
    assert pipeline.ledger.sources() == []
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "lost")
    if through == "the stream":
        deliver(pipeline, [(0, event("e"))])
        pipeline.run()
    else:
        at_the_door(pipeline, event("e"))
    pipeline.ledger.close()
    restore()

    lost = Pipeline(tmp_path, **SECTIONS)
    with pytest.raises(IntegrityError, match="reconcile --restored"):
        DoorSlot(lost.boundary, 1)
    assert on_the_log(lost) == ["e"]


def test_reading_back_makes_no_slot_known_that_nobody_had(strict: Pipeline, tmp_path: Path) -> None:
    restore = copy_of(strict.ledger, strict.settings, tmp_path / "copy")
    for number in range(2):
        DoorSlot(strict.boundary, number)
    strict.ledger.close()
    restore()

    behind = Pipeline(tmp_path, **SECTIONS)
    for _ in range(3):
        read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
        slots = [info for info in behind.ledger.sources() if info.door == SYNCHRONOUS_DOOR]
        assert [info.source.partition for info in slots] == [0, 1]
    for number in range(3):
        DoorSlot(behind.boundary, number)
