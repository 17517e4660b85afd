"""Replays in the source topic: found by their stream metadata, undecoded, whatever happens (RPL-2 to RPL-6)."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from admitone.boundary.reconciliation import reconcile
from admitone.boundary.release import Signature, release
from admitone.core.decisions import BlockState
from admitone.core.errors import ConfigurationError, ContractDrift, ServiceUnreachable
from admitone.core.replay_filter import Reached
from admitone.evidence import open_evidence_writer
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.originals import open_deliveries
from admitone.ledger.books import books
from admitone.ledger.columns import pack
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from admitone.ledger.stored_ledger import StoredLedger
from admitone.ledger.upstream_marks import marks_of
from admitone.settings import load_settings
from tests.support.closing import close_green
from tests.support.flaky import Flaky
from tests.support.pipeline import Pipeline, event
from tests.support.replayed import FILTERED, OTHER, STRANGER, UPSTREAM, Written, copied, write

pytestmark = pytest.mark.usefixtures("either_ledger")


def filtering(home: Path, **sections: dict[str, Any]) -> Pipeline:
    return Pipeline(home, **{"transport": FILTERED, **sections})


def outcome(pipeline: Pipeline) -> list[str]:
    """Return what was decided about every delivery, in offset order."""
    rows = sorted(pipeline.decisions(), key=lambda row: row["source"]["offset"])
    return [row["reason"] or row["verdict"] for row in rows]


def marks(pipeline: Pipeline) -> dict[tuple[int, int], Reached]:
    return marks_of(pipeline.ledger.upstreams())


def test_a_batch_that_was_written_again_is_replayed_and_not_even_decoded(tmp_path: Path) -> None:
    pipeline = filtering(tmp_path)
    batch = copied(3, 4, 7)
    again = [record._replace(value=b"not json any more", run="header") for record in batch[1:]]
    write(pipeline, [*batch, *again, *copied(8)])
    pipeline.run()

    assert outcome(pipeline) == ["ADMITTED"] * 3 + ["REPLAYED"] * 2 + ["ADMITTED"]
    replays = pipeline.decisions(verdict="REPLAYED")
    assert [row["upstream"]["offset"] for row in replays] == [4, 7]
    assert {(row["run_id"], row["event_id"], row["identity"]) for row in replays} == {
        ("header", None, None)
    }
    assert marks(pipeline) == {(UPSTREAM, 0): Reached(8, 8)}
    default, header = books(pipeline.ledger)["runs"]
    assert (default["admitted"], default["replayed"], default["order_violations"]) == (4, 0, 1)
    assert (header["deliveries"], header["replayed"], header["balanced"]) == (2, 2, True)
    assert pipeline.problems() == []
    for run in ("default", "header"):
        gate = gate_of(run, pipeline.ledger, pipeline.transport, pipeline.settings)
        assert gate.green, gate.blockers


def test_without_the_filter_the_same_records_are_duplicates(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1})
    write(pipeline, [*copied(3, 4), *copied(3, 4)])
    pipeline.run()

    assert outcome(pipeline) == ["ADMITTED"] * 2 + ["DUPLICATE"] * 2
    assert marks(pipeline) == {}


def test_records_without_stream_metadata_pass_and_strict_keys_quarantine_them(
    tmp_path: Path,
) -> None:
    records = [
        *copied(1),
        Written(None, event("unkeyed")),
        Written(b"customer-7", event("foreign")),
        *copied(1, producer=STRANGER),
        *copied(1, producer=STRANGER),
        *copied(1),
    ]
    for strict, expected in (
        (False, ["ADMITTED"] * 4 + ["DUPLICATE", "REPLAYED"]),
        (True, ["ADMITTED"] + ["FOREIGN_KEY"] * 4 + ["REPLAYED"]),
    ):
        home = tmp_path / str(strict)
        home.mkdir()
        pipeline = filtering(
            home,
            transport={**FILTERED, "strict_keys": strict},
            pipeline={"quarantine_limit": 1.0},
        )
        write(pipeline, records)
        pipeline.run()

        assert outcome(pipeline) == expected
        assert pipeline.problems() == []


def test_what_strict_keys_quarantined_can_be_released(tmp_path: Path) -> None:
    pipeline = filtering(tmp_path, transport={**FILTERED, "strict_keys": True})
    write(pipeline, [*copied(1), Written(None, event("unkeyed"))])
    pipeline.run()
    fetch = open_deliveries(pipeline.settings, pipeline.ledger)
    chosen = in_quarantine(pipeline.ledger, Filter(run_id="default"))
    release(pipeline.boundary, fetch, chosen, Signature("ann", "it is one of ours"))
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(2)

    assert [row["verdict"] for row in pipeline.decisions(event_id="unkeyed")] == ["ADMITTED"]
    assert pipeline.problems() == []


@pytest.mark.parametrize("crash", ["publish", "settle"])
def test_a_crash_with_replays_in_the_block_changes_no_decision(crash: str, tmp_path: Path) -> None:
    pipeline = filtering(tmp_path)
    write(pipeline, [*copied(0, 1, 2), *copied(1, 2, 3)])
    whole = pipeline.transport.append, pipeline.ledger.conclude
    if crash == "publish":
        pipeline.transport.append = _vanish  # type: ignore[method-assign]
    else:
        pipeline.ledger.conclude = _vanish  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        pipeline.run()
    assert marks(pipeline) == {}
    pipeline.transport.append, pipeline.ledger.conclude = whole  # type: ignore[method-assign]
    pipeline.run()

    states = [block.state for block in pipeline.ledger.blocks()]
    expected = (
        [BlockState.ABORTED, BlockState.SETTLED] if crash == "publish" else [BlockState.SETTLED]
    )
    assert states == expected
    assert outcome(pipeline) == ["ADMITTED"] * 3 + ["REPLAYED"] * 2 + ["ADMITTED"]
    assert marks(pipeline) == {(UPSTREAM, 0): Reached(3, 3)}
    (seen,) = pipeline.ledger.upstreams()
    assert (seen.replayed, seen.order_violations) == (2, 1)
    assert pipeline.problems() == []


def _vanish(*_: object) -> None:
    raise ConnectionError("the machine is gone")


def test_what_follows_a_block_of_unknown_fate_is_a_replay_of_it_all_the_same(
    tmp_path: Path,
) -> None:
    pipeline = filtering(tmp_path, pipeline={"max_block": 3})
    transport = Flaky(pipeline.transport, "down-before")
    pipeline.boundary.transport = transport
    write(pipeline, [*copied(0, 1), *copied(0)])
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    assert outcome(pipeline) == ["PUBLISH_UNKNOWN"] * 2 + ["REPLAYED"]
    assert marks(pipeline) == {(UPSTREAM, 0): Reached(1, 0)}

    transport.heal()
    write(pipeline, copied(1, 2))
    pipeline.run()

    assert outcome(pipeline) == ["ADMITTED"] * 2 + ["REPLAYED"] * 2 + ["ADMITTED"]
    assert list(reconcile(pipeline.boundary)) == []
    (seen,) = pipeline.ledger.upstreams()
    assert (seen.replayed, seen.order_violations) == (2, 1)
    assert pipeline.problems() == []


@pytest.mark.parametrize("seed", range(5))
def test_decisions_are_those_of_a_model_whatever_the_blocks_the_restarts_and_the_failures(
    seed: int, tmp_path: Path
) -> None:
    """An upstream job writes, falls back and writes again; each event must be admitted once, each replay named."""
    rng = random.Random(seed)
    written: list[Written] = []
    reached = {(producer, partition): 0 for producer in (UPSTREAM, OTHER) for partition in (0, 1)}
    for _ in range(rng.randint(4, 12)):
        upstream = rng.choice(sorted(reached))
        first = max(0, reached[upstream] - rng.choice([0, 0, 3, 9]))
        last = first + rng.randint(1, 8)
        batch = copied(*range(first, last), producer=upstream[0], partition=upstream[1])
        reached[upstream] = max(reached[upstream], last)
        if rng.random() < 0.3:
            batch.insert(rng.randint(0, len(batch)), Written(None, event(f"free{len(written)}")))
        written += batch
    plan = [
        rng.choice(["fine", "lost-after", "lost-before", "down-after", "down-before"])
        for _ in range(9)
    ]
    pipeline = filtering(tmp_path, pipeline={"max_block": rng.randint(1, 12)})
    flaky = Flaky(pipeline.transport, *plan)
    pipeline.boundary.transport = flaky
    cut = rng.randint(0, len(written))
    for part in (written[:cut], written[cut:]):
        if part:
            write(pipeline, part)
        for _ in range(12):
            try:
                pipeline.run()
                break
            except (ServiceUnreachable, TimeoutError, ConnectionError):
                flaky.heal()
                pipeline = filtering(tmp_path, pipeline={"max_block": rng.randint(1, 12)})
                pipeline.boundary.transport = flaky

    for _ in plan:  # What is still unknown is looked for, or published late, at a start.
        with contextlib.suppress(ServiceUnreachable, TimeoutError, ConnectionError):
            flaky.heal()
            pipeline.run()

    highest: dict[bytes, bytes] = {}
    expected = []
    for record in written:
        position = record.key
        replayed = position is not None and position <= highest.get(position[:12], b"")
        expected.append("REPLAYED" if replayed else "ADMITTED")
        if position is not None:
            highest[position[:12]] = max(position, highest.get(position[:12], b""))
    assert outcome(pipeline) == expected
    assert sum(seen.replayed for seen in pipeline.ledger.upstreams()) == expected.count("REPLAYED")
    assert pipeline.problems() == []


def test_marks_are_kept_for_each_partition_of_the_source_topic(tmp_path: Path) -> None:
    pipeline = filtering(tmp_path, transport={**FILTERED, "raw_partitions": 2})
    write(pipeline, copied(5), partition=0)
    write(pipeline, copied(4), partition=1)
    pipeline.run()

    assert [row["verdict"] for row in pipeline.decisions()] == ["ADMITTED", "ADMITTED"]
    assert sorted(seen.reached.highest for seen in pipeline.ledger.upstreams()) == [4, 5]


def test_other_partitions_than_the_marks_were_made_for_stop_the_reader_until_it_is_said_so(
    tmp_path: Path,
) -> None:
    pipeline = filtering(tmp_path)
    write(pipeline, copied(1, 2))
    pipeline.run()
    _add_partition(pipeline)
    grown = {**FILTERED, "raw_partitions": 2}
    with pytest.raises(ContractDrift, match="made for 1"):
        filtering(tmp_path, transport=grown).run()

    taken_in = Pipeline(tmp_path, transport={"raw_partitions": 2})
    write(taken_in, copied(2), partition=1)
    taken_in.run()
    again = filtering(tmp_path, transport=grown)
    write(again, copied(2, 3), partition=0)
    again.run()

    found = [row["verdict"] for row in again.decisions()]
    assert sorted(found) == ["ADMITTED", "ADMITTED", "ADMITTED", "DUPLICATE", "REPLAYED"]
    assert again.problems() == []


def _add_partition(pipeline: Pipeline) -> None:
    topic_id = pipeline.topic.topic_id
    with pipeline.transport._manifest.transaction() as db:  # type: ignore[attr-defined]
        db.execute("UPDATE topic SET partitions = 2 WHERE topic_id = ?", (topic_id,))
        db.execute("INSERT INTO partition (topic_id, partition) VALUES (?, 1)", (topic_id,))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"filter_replays": True}, "needs producers"),
        ({"strict_keys": True}, "set both"),
        ({"filter_replays": True, "producers": [2**63]}, "less than"),
    ],
)
def test_a_filter_that_could_find_nothing_is_refused(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_settings(tmp_path, transport=wrong)


def test_a_replay_that_nothing_bears_out_keeps_the_run_red(tmp_path: Path) -> None:
    pipeline = filtering(tmp_path, pipeline={"max_block": 2})
    write(pipeline, [*copied(1, 2), *copied(1, 3), *copied(2)])
    pipeline.run()
    assert gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings).green
    block = pipeline.ledger.blocks()[0]
    facts, _, _ = pipeline.ledger.columns(block.block_id)
    lowered = facts.set_column(
        facts.column_names.index("upstream"), "upstream", pa.nulls(2, facts["upstream"].type)
    )
    _overwrite_facts(pipeline, block.block_id, pack(lowered))
    gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)

    whats = [blocker.what for blocker in gate.blockers]
    assert "replays that no delivery before them bears out" in whats


def _overwrite_facts(pipeline: Pipeline, block_id: int, packed: bytes) -> None:
    assert isinstance(pipeline.ledger, StoredLedger)
    pipeline.ledger._store.run(
        lambda rows: rows.change(
            "UPDATE facts SET facts = %s WHERE block_id = %s", packed, block_id
        )
    )


def test_replays_of_another_runs_events_are_borne_out_by_its_blocks(tmp_path: Path) -> None:
    pipeline = filtering(tmp_path, pipeline={"max_block": 2})
    first = [record._replace(run="one") for record in copied(1, 2, 3, 4)]
    write(pipeline, first)
    write(pipeline, [record._replace(run="two") for record in copied(2, 4)])
    pipeline.run()

    assert [row["verdict"] for row in pipeline.decisions(run_id="two")] == ["REPLAYED"] * 2
    assert gate_of("two", pipeline.ledger, pipeline.transport, pipeline.settings).green
    close_green("two", pipeline.ledger, pipeline.transport, pipeline.settings)
