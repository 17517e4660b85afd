"""The boundary on the embedded stores: promises, traps, and agreement with the oracle."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from admitone.boundary.admission import Boundary
from admitone.boundary.doors import SYNCHRONOUS_DOOR
from admitone.core.decisions import BlockState
from admitone.core.errors import Fenced, IntegrityError
from admitone.demo.traffic import GeneratorOptions, TruthRecorder, generate
from admitone.evidence import open_evidence_store, open_evidence_writer
from admitone.evidence.audit.gate import gate_of
from admitone.infra.clock import wall_clock
from admitone.ledger.books import books
from tests.support.closing import close_green
from tests.support.logs import delete_topic, truncate
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")


@pytest.mark.parametrize("seed", range(20))
def test_every_decision_agrees_with_the_oracle(seed: int, tmp_path: Path) -> None:
    options = GeneratorOptions(
        700, seed=seed, duplicates=0.25, contradictions=0.02, malformed=0.08, late=0.02
    )
    recorder = TruthRecorder(options)
    pipeline = Pipeline(tmp_path, pipeline={"max_block": 20 + seed * 7})
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))))
    pipeline.run()

    assert pipeline.problems(recorder.truth()) == []


def test_the_same_file_again_gives_only_duplicates_and_quarantine(tmp_path: Path) -> None:
    options = GeneratorOptions(2_000, seed=5)
    lines = [delivery.line for delivery in generate(options)]
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(*lines)
    pipeline.run()
    before = {
        row["identity"]: row["bus"] for row in pipeline.decisions() if row["verdict"] == "ADMITTED"
    }
    pipeline.ingest(*lines)
    pipeline.run()
    after = pipeline.decisions()
    (run,) = books(pipeline.ledger)["runs"]

    assert {row["identity"]: row["bus"] for row in after if row["verdict"] == "ADMITTED"} == before
    assert run["deliveries"] == 2 * len(lines)
    assert run["admitted"] == len(before)
    assert pipeline.problems() == []


def test_contradiction_leaves_the_first_admission_untouched(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1", {"loadTimeMs": 10}))
    pipeline.run()
    (first,) = pipeline.decisions(event_id="e1")
    pipeline.ingest(event("e1", {"loadTimeMs": 11}), event("e1", {"loadTimeMs": 10}))
    pipeline.run()
    admission, contradiction, duplicate = pipeline.decisions(event_id="e1")

    assert admission == first
    assert (contradiction["verdict"], contradiction["reason"]) == (
        "QUARANTINED",
        "PAYLOAD_MISMATCH",
    )
    assert duplicate["verdict"] == "DUPLICATE"
    assert contradiction["first"] == duplicate["first"] == first["source"]
    assert contradiction["payload_hash"] != first["payload_hash"]


def test_the_size_of_blocks_changes_no_decision(tmp_path: Path) -> None:
    lines = [delivery.line for delivery in generate(GeneratorOptions(600, seed=9, duplicates=0.4))]
    found = []
    for size in (1, 13, 10_000):
        home = tmp_path / str(size)
        home.mkdir()
        pipeline = Pipeline(home, pipeline={"max_block": size})
        pipeline.ingest(*lines)
        pipeline.run()
        found.append(
            {
                (row["source"]["partition"], row["source"]["offset"]): (
                    row["verdict"],
                    row["reason"],
                )
                for row in pipeline.decisions()
            }
        )
    assert found[0] == found[1] == found[2]


def test_two_sources_with_the_same_events_admit_each_once(tmp_path: Path) -> None:
    """Partitions wait for each other's blocks without holding claims of their own."""
    one = Pipeline(tmp_path, pipeline={"name": "one", "max_block": 7})
    lines = [event(f"e{number}") for number in range(150)]
    one.ingest(*lines)
    two = Pipeline(
        tmp_path,
        pipeline={"name": "two", "max_block": 5},
        transport={"raw_topic": "raw2", "raw_partitions": 3},
    )
    two.ingest(*reversed(lines))
    threads = [threading.Thread(target=pipeline.run) for pipeline in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (run,) = books(one.ledger)["runs"]

    assert (run["admitted"], run["duplicates"], run["balanced"]) == (150, 150, True)
    assert one.problems() == []


def test_a_later_boundary_on_one_source_fences_the_earlier(tmp_path: Path) -> None:
    earlier, later = Pipeline(tmp_path), Pipeline(tmp_path)
    earlier.ingest(event("e1"), event("e2"))
    old = earlier.boundary.start(earlier.topic)
    owned = earlier.own(0, old), earlier.own(1, old)
    later.run()
    for partition in (0, 1):
        records = (
            earlier.records(partition) if earlier.transport.ends(earlier.topic)[partition] else None
        )
        if records is not None:
            with pytest.raises(Fenced):
                list(owned[partition].admit(records))
    with pytest.raises(Fenced, match="let the newer pipeline run"):
        earlier.own(0, old)

    assert later.problems() == []


def test_a_block_whose_owner_vanished_is_resolved_by_who_waits_for_it(tmp_path: Path) -> None:
    gone = Pipeline(tmp_path, pipeline={"name": "gone"})
    gone.ingest(event("e1"))
    generation = gone.boundary.start(gone.topic)
    (partition,) = [number for number, end in enumerate(gone.transport.ends(gone.topic)) if end]
    owned = gone.own(partition, generation)
    stopped = owned.admit(gone.records(partition))
    gone.transport.append = _vanish  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        next(stopped)
    waiting = Pipeline(
        tmp_path,
        pipeline={"name": "waiting"},
        transport={"raw_topic": "other", "raw_partitions": 1},
    )
    waited = count(step=61_000)
    waiting.boundary.stopwatch = lambda: next(waited)
    waiting.ingest(event("e1"))
    waiting.run()

    assert [block.state for block in waiting.ledger.blocks()] == [
        BlockState.ABORTED,
        BlockState.SETTLED,
    ]
    assert waiting.verdicts("e1") == [("ADMITTED", None)]
    assert waiting.problems() == []


def test_no_clock_that_jumps_seizes_a_block_that_is_being_decided(tmp_path: Path) -> None:
    """A hundred jumps, forward and back, while one pipeline waits for an event that another one is publishing."""
    chance = random.Random(3)
    busy = Pipeline(tmp_path, pipeline={"name": "busy"}, transport={"raw_partitions": 1})
    busy.ingest(event("e1"))
    owned = busy.own(0, busy.boundary.start(busy.topic))
    other = {"raw_topic": "other", "raw_partitions": 1}
    waiting = Pipeline(tmp_path, pipeline={"name": "waiting"}, transport=other)
    waiting.ingest(event("e1"))
    waits = waiting.own(0, waiting.boundary.start(waiting.topic))
    jumps: list[int] = []

    def jump() -> int:
        jumps.append(chance.randrange(-(10**10), 10**10))
        return wall_clock() + jumps[-1]

    waiting.boundary.clock = jump
    append = busy.transport.append
    waiter = threading.Thread(target=lambda: list(waits.admit(waiting.records(0))))

    def publish(*parts: Any) -> Any:
        waiter.start()
        (block,) = busy.ledger.blocks(states=[BlockState.IN_FLIGHT])
        door = replace(next(iter(waiting.ledger.sources())), door=SYNCHRONOUS_DOOR)
        for _ in range(100):
            assert waiting.boundary.is_at_work(door, block)
            assert not waiting.boundary.has_outlasted_its_lease(block)
            waiting.boundary.clock()
        return append(*parts)

    busy.transport.append = publish  # type: ignore[method-assign]
    (decided,) = owned.admit(busy.records(0))
    waiter.join()

    assert len(jumps) >= 100
    assert decided.admitted == 1
    assert [verdict for verdict, _ in busy.verdicts("e1")] == ["ADMITTED", "DUPLICATE"]


def _vanish(*_: object) -> None:
    raise ConnectionError("the machine is gone")


def test_a_position_that_is_gone_makes_the_block_ambiguous_never_absent(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, pipeline={"max_block": 1})
    pipeline.ingest(event("e1"), event("e2"), event("e3"))
    pipeline.run()
    pipeline.ingest(event("e9"))
    generation = pipeline.boundary.start(pipeline.topic)
    (partition,) = [
        number
        for number, end in enumerate(pipeline.transport.ends(pipeline.topic))
        if end > pipeline.ledger.mark(pipeline.boundary.source(pipeline.topic, number)).offset + 1
    ]
    owned = pipeline.own(partition, generation)
    settle, pipeline.ledger.conclude = pipeline.ledger.conclude, _vanish  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        list(owned.admit(pipeline.records(partition)))
    pipeline.ledger.conclude = settle  # type: ignore[method-assign]
    admitted = pipeline.transport.topic("admitted.traffic")
    for number, end in enumerate(pipeline.transport.ends(admitted)):
        truncate(pipeline.transport, admitted, number, end)
    pipeline.run()

    assert pipeline.verdicts("e9") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")]
    (run,) = books(pipeline.ledger)["runs"]
    assert (run["ambiguous"], run["balanced"]) == (1, True)
    assert not gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings).green


def test_a_recreated_source_topic_is_read_from_its_beginning(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"), event("e2"))
    pipeline.run()
    delete_topic(pipeline.transport, "raw")
    fresh = Pipeline(tmp_path)
    fresh.ingest(event("e1"), event("e3"))
    fresh.run()

    assert fresh.verdicts("e1") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert fresh.verdicts("e3") == [("ADMITTED", None)]
    assert len({row["source"]["producer_id"] for row in fresh.decisions()}) == 2
    assert fresh.problems() == []


def test_a_topic_recreated_between_reading_and_settling_is_noticed(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"))
    generation = pipeline.boundary.start(pipeline.topic)
    (partition,) = [
        number for number, end in enumerate(pipeline.transport.ends(pipeline.topic)) if end
    ]
    records = pipeline.records(partition)
    owned = pipeline.own(partition, generation)
    delete_topic(pipeline.transport, "raw")
    pipeline.transport.create_topic("raw", 2)
    with pytest.raises(IntegrityError, match="was recreated"):
        list(owned.admit(records))


def test_what_a_recreated_topic_left_in_flight_is_resolved(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1})
    pipeline.ingest(event("e1"))
    owned = pipeline.own(0, pipeline.boundary.start(pipeline.topic))
    records = pipeline.records(0)
    delete_topic(pipeline.transport, "raw")
    fresh = Pipeline(tmp_path, transport={"raw_partitions": 1})
    with pytest.raises(IntegrityError, match="was recreated"):
        list(owned.admit(records))
    fresh.ingest(event("e1"))
    fresh.run()

    assert [block.state for block in fresh.ledger.blocks()] == [BlockState.SETTLED] * 2
    assert fresh.verdicts("e1") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert fresh.problems() == []


def test_a_very_long_run_id_has_its_evidence_too(tmp_path: Path) -> None:
    runs = ["ж" * 400, "ж" * 401, "a/../b", ".", "%"]
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(*(event("e1", runId=run) for run in runs))
    pipeline.run()

    assert {file.run_id for file in pipeline.ledger.evidence_files()} == set(runs)
    assert pipeline.problems() == []


def test_evidence_that_does_not_fit_into_one_file_goes_into_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admitone.evidence.writer._BYTES_AT_ONCE", 1_000)
    pipeline = Pipeline(tmp_path, pipeline={"max_block": 2}, transport={"raw_partitions": 1})
    pipeline.ingest(*(event(f"e{number}") for number in range(12)))
    pipeline.run()

    assert len(pipeline.ledger.evidence_files()) > 4
    assert pipeline.problems() == []


def test_an_archive_that_is_missing_for_part_of_a_run_keeps_it_red(tmp_path: Path) -> None:
    without = Pipeline(tmp_path, evidence={"archive": False})
    without.ingest(event("e1"))
    without.run()
    again = Pipeline(tmp_path)
    gate = gate_of("default", again.ledger, again.transport, again.settings)

    assert [blocker.what for blocker in gate.blockers] == ["decisions without archive"]


def test_records_that_were_removed_are_not_passed_over(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1})
    for number in range(3):
        pipeline.ingest(event(f"e{number}"))
    truncate(pipeline.transport, pipeline.topic, 0, 2)
    assert pipeline.records(0).num_rows == 1
    with pytest.raises(IntegrityError, match="no records at offset 0"):
        list(pipeline.transport.read(pipeline.topic, 0, 0, 3))


def test_malformed_deliveries_after_the_closing_do_not_disturb_it(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"))
    pipeline.run()
    stores = pipeline.ledger, pipeline.transport, pipeline.settings
    close_green("default", *stores)
    pipeline.ingest(b"{nope")
    pipeline.run()

    assert {row["reason"] for row in pipeline.decisions(verdict="QUARANTINED")} == {"RUN_CLOSED"}
    assert gate_of("default", *stores).green


def test_a_changed_topic_map_does_not_change_what_was_decided_before(tmp_path: Path) -> None:
    entries = [
        '[[topics]]\nfamily = "views"\ntopic = "v"\nevent_types = ["page_view"]\n',
        '[[topics]]\nfamily = "orders"\ntopic = "o"\nevent_types = ["purchase"]\npartitions = 2\n',
    ]
    file = tmp_path / "admitone.toml"
    file.write_text("".join(entries))
    before = Pipeline(tmp_path)
    before.ingest(event("e1"), event("e2"))
    before.run()
    file.write_text("".join(reversed(entries)))
    after = Pipeline(tmp_path)
    after.ingest(event("e3"))
    after.run()

    assert {row["bus"]["topic"] for row in after.decisions()} == {"v"}
    (found,) = after.decisions(bus=("v", *_place(after.decisions(event_id="e1")[0])))
    assert found["event_id"] == "e1"
    assert after.problems() == []


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["bus"]["partition"], row["bus"]["offset"]


def test_records_out_of_offset_order_are_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1})
    pipeline.ingest(event("e1"), event("e2"))
    owned = pipeline.own(0, pipeline.boundary.start(pipeline.topic))
    records = pipeline.records(0)
    shuffled = records.take(pa.array([1, 0]))
    with pytest.raises(IntegrityError, match="offset order"):
        list(owned.admit(shuffled))


def test_original_bytes_of_what_was_refused_are_kept(tmp_path: Path) -> None:
    from admitone.evidence.originals import original

    hostile = [b'{"metadata": \xff}', b"no json", event("", {}), event("e1") + b" trailing"]
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(*hostile)
    pipeline.run()
    store = open_evidence_store(pipeline.settings)
    ids = [row["id"].split("-") for row in pipeline.decisions()]

    def originals() -> set[bytes | None]:
        return {
            original(pipeline.ledger, store, int(block), int(ordinal)) for block, ordinal in ids
        }

    assert originals() == set(hostile)
    assert pipeline.ledger.expire_journal(2) > 0
    assert originals() == set(hostile)


def write_again(pipeline: Pipeline, blocks: list[int]) -> int:
    """Write evidence as a writer that asked what is missing before another one wrote it."""
    with patch.object(pipeline.ledger, "pending_evidence", side_effect=[blocks, []]):
        return open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(2)


def test_evidence_is_written_again_with_the_same_rows(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(
        event("e1"), event("e1", {"pageId": "x"}), b"no json", event("e2", runId="other")
    )
    pipeline.run()
    before = pipeline.ledger.evidence_files()
    folder = pipeline.settings.resolve(pipeline.settings.evidence.path)
    for file in before:
        (folder / file.path).unlink()
    assert pipeline.problems() != []
    write_again(pipeline, [block.block_id for block in pipeline.ledger.blocks()])

    assert pipeline.ledger.evidence_files() == before
    assert pipeline.problems() == []
    assert {file.run_id for file in before} == {"default", "other"}


def test_evidence_written_twice_in_other_groups_is_recorded_once(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, pipeline={"max_block": 1}, transport={"raw_partitions": 1})
    pipeline.ingest(event("e1"), event("e2"), event("e3"))
    pipeline.run()

    assert write_again(pipeline, [1, 2]) == 0
    assert pipeline.problems() == []
    folder = pipeline.settings.resolve(pipeline.settings.evidence.path) / "runs"
    assert len(list(folder.rglob("*.parquet"))) == len(pipeline.ledger.evidence_files()) == 2


def test_a_clean_run_closes_and_then_takes_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"), event("e1"), event("e2"))
    pipeline.run()
    stores = pipeline.ledger, pipeline.transport, pipeline.settings
    artifact = close_green("default", *stores)
    pipeline.ingest(event("e3"))
    pipeline.run()

    assert artifact["books"]["admitted"] == 2
    assert len(artifact["merkle_root"]) == 64
    assert pipeline.verdicts("e3") == [("QUARANTINED", "RUN_CLOSED")]
    assert gate_of("default", *stores).green


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: next(folder.rglob("receipts/*")).unlink(), "missing or was changed"),
        (
            lambda folder: next(folder.rglob("archive/*")).write_bytes(b"x"),
            "missing or was changed",
        ),
    ],
)
def test_damaged_evidence_keeps_a_run_red(tmp_path: Path, spoil: object, said: str) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"))
    pipeline.run()
    spoil(pipeline.settings.resolve(pipeline.settings.evidence.path))  # type: ignore[operator]
    gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)

    assert not gate.green
    assert said in gate.blockers[0].what


def test_a_required_family_without_admissions_is_a_blocker(tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(
        '[[topics]]\nfamily = "traffic"\ntopic = "t"\nevent_types = ["page_view"]\n'
        '[[topics]]\nfamily = "orders"\ntopic = "o"\nevent_types = ["purchase"]\nrequired = true\n'
    )
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"))
    pipeline.run()
    gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)

    assert [blocker.kind for blocker in gate.blockers] == ["empty family"]
    assert isinstance(pipeline.boundary, Boundary)


def test_the_books_balance_at_any_moment_while_the_pipeline_runs(tmp_path: Path) -> None:
    lines = [delivery.line for delivery in generate(GeneratorOptions(1_500, seed=3))]
    pipeline = Pipeline(tmp_path, pipeline={"max_block": 20})
    pipeline.ingest(*lines)
    worker = threading.Thread(target=pipeline.run)
    worker.start()
    seen = set()
    while worker.is_alive():
        for run in books(pipeline.ledger)["runs"]:
            seen.add(run["deliveries"])
            assert run["balanced"], run
            assert run["deliveries"] == sum(
                run[name]
                for name in ("admitted", "duplicates", "replayed", "quarantined", "ambiguous")
            )
    worker.join()

    assert len(seen) > 3
    assert books(pipeline.ledger)["runs"][0]["deliveries"] == len(lines)
