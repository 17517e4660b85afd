"""Evidence: what every store guarantees, what the writer leaves behind, and what can be written again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import IntegrityError
from admitone.demo.traffic import GeneratorOptions, TruthRecorder, generate
from admitone.evidence import open_evidence_store, open_evidence_writer
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.audit.repair import repair_run, rewrite
from admitone.evidence.audit.verify import verify_run
from admitone.evidence.evidence_file import closure_path, read_file, run_folder
from admitone.evidence.evidence_rows import ARCHIVE, QUARANTINE, RECEIPTS, RESOLUTIONS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.originals import deliveries, original
from admitone.ledger.model import Block, Outcome, Resolved
from tests.support.closing import close_green
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

# --- writing and reading through any store -----------------------------------------------------------------


@pytest.fixture
def pipeline(url: str, tmp_path: Path, either_ledger: None) -> Pipeline:
    """Return a pipeline with an admission, a duplicate, a contradiction and a malformed delivery."""
    made = Pipeline(
        tmp_path,
        evidence={"path": url},
        transport={"raw_partitions": 1},
        pipeline={"quarantine_limit": 1.0},
    )
    made.ingest(event("e1"), event("e1"), event("e1", {"pageId": "other"}), b"no json", run="r")
    made.run()
    return made


def test_every_kind_of_evidence_goes_through_the_store(pipeline: Pipeline) -> None:
    store = open_evidence_store(pipeline.settings)
    rows = {file.kind: read_file(store, file) for file in pipeline.ledger.evidence_files("r")}

    assert {kind: table.num_rows for kind, table in rows.items()} == {
        RECEIPTS: 1,
        QUARANTINE: 2,
        ARCHIVE: 1,
    }
    assert rows[QUARANTINE]["value"].to_pylist()[1] == b"no json"
    assert rows[QUARANTINE]["first_offset"].to_pylist() == [0, None]
    assert pipeline.problems() == []


def test_original_bytes_outlive_the_journal(pipeline: Pipeline) -> None:
    store, ledger = open_evidence_store(pipeline.settings), pipeline.ledger
    assert ledger.expire_journal(2) == 1

    assert original(ledger, store, 1, 0) == event("e1")
    assert original(ledger, store, 1, 1) is None
    assert deliveries(ledger, store, 1, [3, 2])["value"].to_pylist() == [
        b"no json",
        event("e1", {"pageId": "other"}),
    ]
    with pytest.raises(IntegrityError, match="1-1 are in no store"):
        deliveries(ledger, store, 1, [1])


def test_a_crash_between_the_files_and_their_record_leaves_no_evidence_twice(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.ingest(event("e2"), run="r")
    _admit(pipeline)
    with monkeypatch.context() as crashing:
        crashing.setattr(pipeline.ledger, "record_evidence", _crash)
        with pytest.raises(ConnectionError):
            open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(2)
    # By the time it runs again there is more to write, so the groups are others.
    pipeline.ingest(event("e3"), run="r")
    pipeline.run()
    stores = pipeline.ledger, pipeline.transport, pipeline.settings

    assert pipeline.problems() == []
    (additions,) = [each for each in verify_run("r", *stores).comparisons if "nowhere" in each.what]
    assert len(additions.differences) == 2
    done = repair_run("r", pipeline.ledger, open_evidence_store(pipeline.settings))
    assert len(done.set_aside) == 2
    assert verify_run("r", *stores).verified


def _admit(pipeline: Pipeline) -> None:
    """Decide what is on the raw log, without reconciling before or writing evidence after."""
    if not pipeline.ledger.sources():
        pipeline.boundary.start(pipeline.topic)
    generation = pipeline.ledger.take_generation(pipeline.settings.pipeline.name)
    list(pipeline.own(0, generation).admit(pipeline.records(0)))


def _crash(*_: object, **__: object) -> None:
    raise ConnectionError("the machine is gone")


def test_files_that_are_about_to_be_recorded_are_not_taken_for_leftovers(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.ingest(event("e2"), run="r")
    _admit(pipeline)
    stores = pipeline.ledger, pipeline.transport, pipeline.settings
    record = pipeline.ledger.record_evidence

    def looked_at_first(*arguments: Any, **named: Any) -> bool:
        assert verify_run("r", *stores).verified
        assert (
            repair_run("r", pipeline.ledger, open_evidence_store(pipeline.settings)).set_aside == []
        )
        return record(*arguments, **named)

    monkeypatch.setattr(pipeline.ledger, "record_evidence", looked_at_first)
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(2)
    assert pipeline.problems() == []


# --- resolutions --------------------------------------------------------------------------------------------


@pytest.fixture
def unknown(tmp_path: Path, either_ledger: None) -> tuple[Pipeline, Block]:
    """Return a pipeline whose first block is on the log, although nobody got an answer; one follows it."""
    pipeline = Pipeline(
        tmp_path, transport={"raw_partitions": 1}, pipeline={"quarantine_limit": 1.0}
    )
    pipeline.ingest(event("e1"), event("e2"), event("e1"), run="r")
    conclude = pipeline.ledger.conclude

    def unknown_instead(block: Block, epoch: int, outcome: Outcome, *_: object) -> None:
        conclude(block, epoch, Outcome(BlockState.AMBIGUOUS, None, None, outcome.decided_at))

    pipeline.ledger.conclude = unknown_instead  # type: ignore[method-assign]
    _admit(pipeline)
    pipeline.ledger.conclude = conclude  # type: ignore[method-assign]
    pipeline.ingest(event("e2"), event("e2", {"pageId": "x"}), event("e3"), run="r")
    _admit(pipeline)
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(1)
    (block,) = pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])
    return pipeline, block


def resolve(pipeline: Pipeline, block: Block, action: Action) -> None:
    state = BlockState.RETRACTED if action is Action.RETRACTED else BlockState.SETTLED
    offsets = None if action is Action.RETRACTED else np.array([0, 1])
    epoch = pipeline.ledger.take_epoch(block.source, None)
    moment = None if offsets is None else 77
    pipeline.ledger.resolve(
        block, epoch, Resolved(state, action, offsets, moment, 99, "ann", "looked")
    )


def tables(pipeline: Pipeline) -> dict[str, list[dict[str, Any]]]:
    store = open_evidence_store(pipeline.settings)
    found: dict[str, list[dict[str, Any]]] = {}
    for file in pipeline.ledger.evidence_files("r"):
        found.setdefault(file.kind, []).extend(read_file(store, file).to_pylist())
    return found


def test_evidence_of_a_block_stays_as_it_was_first_decided(
    unknown: tuple[Pipeline, Block],
) -> None:
    pipeline, block = unknown
    first = tables(pipeline)
    resolve(pipeline, block, Action.FOUND)
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(100)
    later = tables(pipeline)

    assert first[RECEIPTS] == [row for row in later[RECEIPTS] if row in first[RECEIPTS]]
    assert first[QUARANTINE] == later[QUARANTINE]
    assert [row["verdict"] for row in first[RECEIPTS]].count("AMBIGUOUS") == 5
    assert RESOLUTIONS not in first


def test_a_resolution_that_admits_has_its_receipts_and_envelopes(
    unknown: tuple[Pipeline, Block],
) -> None:
    pipeline, block = unknown
    resolve(pipeline, block, Action.FOUND)
    assert not gate_of("r", pipeline.ledger, pipeline.transport, pipeline.settings).green
    assert pipeline.ledger.pending_resolutions() == [1, 2]
    assert open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(100) == 2
    found = tables(pipeline)
    admitted = [row for row in found[RECEIPTS] if row["verdict"] == "ADMITTED"]

    assert [(row["event_id"], row["bus_offset"], row["published_at"]) for row in admitted] == [
        ("e3", 2, admitted[0]["published_at"]),
        ("e1", 0, 77),
        ("e2", 1, 77),
    ]
    assert sorted(row["event_id"] for row in found[ARCHIVE]) == ["e1", "e2", "e3"]
    assert [
        (row["event_id"], row["action"], row["verdict"], row["reason"], row["cause"])
        for row in found[RESOLUTIONS]
    ] == [
        ("e1", "FOUND", "ADMITTED", None, None),
        ("e2", "FOUND", "ADMITTED", None, None),
        ("e1", "FOUND", "DUPLICATE", None, None),
        ("e2", "FOUND", "DUPLICATE", None, 1),
        ("e2", "FOUND", "QUARANTINED", "PAYLOAD_MISMATCH", 1),
    ]
    assert {(row["author"], row["explanation"], row["at"]) for row in found[RESOLUTIONS]} == {
        ("ann", "looked", 99)
    }
    assert pipeline.problems() == []


def test_a_run_with_every_kind_of_resolution_closes_once_all_is_resolved(
    unknown: tuple[Pipeline, Block],
) -> None:
    pipeline, block = unknown
    stores = pipeline.ledger, pipeline.transport, pipeline.settings
    resolve(pipeline, block, Action.FOUND)
    pipeline.run()
    assert "open contradictions" in [each.what for each in close_run("r", *stores).gate.blockers]
    assert pipeline.ledger.runs()["r"] == "OPEN"
    pipeline.ledger.dispose(2, [1], Action.KEPT_FIRST, 120, "bob", "the first is right")
    (blocker,) = gate_of("r", *stores).blockers
    assert blocker.what == "resolutions whose evidence is not written yet"
    artifact = close_green("r", *stores)

    assert artifact["books"]["ambiguous"] == 0
    assert artifact["receipts"] == 3 + 5
    assert verify_run("r", *stores).verified


def test_a_retracted_block_is_kept_with_its_bytes_and_blocks_until_discarded(
    unknown: tuple[Pipeline, Block],
) -> None:
    pipeline, block = unknown
    stores = pipeline.ledger, pipeline.transport, pipeline.settings
    resolve(pipeline, block, Action.RETRACTED)
    pipeline.run()
    (check,) = [c for c in gate_of("r", *stores).checks if c.criterion == "evidence complete"]
    assert [(b.kind, b.count) for b in check.blockers] == [("quarantined", 5)]
    pipeline.ledger.dispose(1, [0, 1, 2], Action.DISCARDED, 120, "bob", "given up")
    pipeline.ledger.dispose(2, [0, 1], Action.DISCARDED, 120, "bob", "given up")
    pipeline.run()
    pipeline.ledger.expire_journal(1_000)

    assert gate_of("r", *stores).green
    assert original(pipeline.ledger, open_evidence_store(pipeline.settings), 1, 1) == event("e2")
    close_green("r", *stores)
    assert verify_run("r", *stores).verified


def test_the_journal_waits_for_the_evidence_of_resolutions(unknown: tuple[Pipeline, Block]) -> None:
    pipeline, block = unknown
    assert pipeline.ledger.expire_journal(1_000) == 1
    resolve(pipeline, block, Action.FOUND)
    assert pipeline.ledger.expire_journal(1_000) == 0
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(100)
    assert pipeline.ledger.expire_journal(1_000) == 1


# --- writing again ------------------------------------------------------------------------------------------

Spoil = Callable[[EvidenceStore, str], None]


def _remove(store: EvidenceStore, path: str) -> None:
    store.delete(path)


def _truncate(store: EvidenceStore, path: str) -> None:
    store.write(path, store.read(path)[:-7])


@pytest.mark.parametrize("spoil", [_remove, _truncate])
def test_missing_or_damaged_files_are_written_again_from_the_journal(
    pipeline: Pipeline, spoil: Spoil
) -> None:
    store, before = open_evidence_store(pipeline.settings), pipeline.ledger.evidence_files("r")
    for file in before:
        spoil(store, file.path)
    assert len(pipeline.problems()) >= 3
    done = repair_run("r", pipeline.ledger, store)

    assert done.rewritten == [file.path for file in before]
    assert done.lost == []
    assert pipeline.ledger.evidence_files("r") == before
    assert pipeline.problems() == []


def test_without_the_journal_receipts_come_from_the_blocks_and_the_rest_is_said_to_be_lost(
    unknown: tuple[Pipeline, Block],
) -> None:
    pipeline, block = unknown
    resolve(pipeline, block, Action.FOUND)
    pipeline.run()
    pipeline.ledger.expire_journal(1_000)
    store = open_evidence_store(pipeline.settings)
    files = pipeline.ledger.evidence_files("r")
    for file in files:
        store.delete(file.path)
    done = repair_run("r", pipeline.ledger, store)

    again = {file.path for file in files if file.kind in (RECEIPTS, RESOLUTIONS)}
    assert set(done.rewritten) == again
    assert len(done.lost) == len(files) - len(again)
    assert all("is lost" in said for said in done.lost)
    assert set(store.list(run_folder("r"))) == again
    (lost,) = [file for file in files if file.kind == QUARANTINE]
    with pytest.raises(IntegrityError, match="original bytes"):
        rewrite(lost, pipeline.ledger, store)


def test_the_same_rows_in_other_bytes_are_as_good_as_the_journal(pipeline: Pipeline) -> None:
    import pyarrow.parquet as pq

    store = open_evidence_store(pipeline.settings)
    pipeline.ledger.expire_journal(2)
    (file,) = [file for file in pipeline.ledger.evidence_files("r") if file.kind == ARCHIVE]
    sink = pa.BufferOutputStream()
    pq.write_table(read_file(store, file), sink, compression="none")
    store.write(file.path, bytes(sink.getvalue()))
    assert pipeline.problems() == [f"{file.path} was changed"]

    assert repair_run("r", pipeline.ledger, store).rewritten == [file.path]
    assert pipeline.problems() == []


def test_rows_that_are_not_the_noted_ones_are_never_written(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_evidence_store(pipeline.settings)
    (file,) = [file for file in pipeline.ledger.evidence_files("r") if file.kind == RECEIPTS]
    store.delete(file.path)
    (block,) = pipeline.ledger.blocks(ids=[1])
    changed = [type(block)(**{**_fields(block), "published_at": 5})]
    monkeypatch.setattr(pipeline.ledger, "blocks", lambda **_: changed)
    with pytest.raises(IntegrityError, match="other rows than it noted"):
        rewrite(file, pipeline.ledger, store)
    assert file.path not in store.list("runs")


def _fields(block: Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in block.__slots__}


# --- the log is gone ----------------------------------------------------------------------------------------


def test_every_decision_is_explained_when_log_checkpoints_and_journal_are_gone(
    tmp_path: Path,
) -> None:
    """EVD-4: durable stores alone say what became of every delivery, and show it."""
    options = GeneratorOptions(
        900, seed=11, duplicates=0.3, contradictions=0.03, malformed=0.08, late=0.02
    )
    recorder = TruthRecorder(options)
    pipeline = Pipeline(
        tmp_path,
        pipeline={"max_block": 90, "quarantine_limit": 1.0},
        transport={"raw_partitions": 3},
    )
    lines = [delivery.line for delivery in recorder.watch(generate(options))]
    pipeline.ingest(*lines)
    pipeline.run()
    for name in ("raw", "admitted.traffic"):
        delete_topic(pipeline.transport, name)
    for file in (tmp_path / "data/log").rglob("*.parquet"):
        file.unlink()
    assert pipeline.ledger.expire_journal(2) == len(pipeline.ledger.blocks())

    rows = pipeline.decisions()
    truth = recorder.truth()
    assert truth.check_decisions(rows) == []
    store, ledger = open_evidence_store(pipeline.settings), pipeline.ledger
    evidence: dict[str, list[dict[str, Any]]] = {}
    for file in ledger.evidence_files():
        evidence.setdefault(file.kind, []).extend(read_file(store, file).to_pylist())
    receipts = {_position(row): row for row in evidence[RECEIPTS]}
    archived = {_position(row): row["value"] for row in evidence[ARCHIVE]}
    quarantined = {_position(row): row["value"] for row in evidence[QUARANTINE]}
    shown = []
    for row in rows:
        place = tuple(row["source"].values())
        if row["verdict"] == "ADMITTED":
            receipt = receipts[place]
            assert receipt["identity"].hex() == row["identity"]
            assert (receipt["bus_topic"], receipt["bus_partition"], receipt["bus_offset"]) == (
                row["bus"]["topic"], row["bus"]["partition"], row["bus"]["offset"],
            )  # fmt: skip
            shown.append(archived[place])
        elif row["verdict"] == "DUPLICATE":
            first = receipts[tuple(row["first"].values())]
            assert first["payload_hash"].hex() == row["payload_hash"]
        else:
            shown.append(quarantined[place])
            if row["reason"] == "PAYLOAD_MISMATCH":
                assert receipts[tuple(row["first"].values())]["identity"].hex() == row["identity"]
    duplicates = truth.verdicts["DUPLICATE"]
    assert len(shown) == len(lines) - duplicates
    assert set(shown) <= set(lines)
    # Identity and payload hash of every archived envelope are computed again here.
    assert {c.criterion: c.blockers for c in _gate(pipeline).checks}[
        "no drift between evidence and ledger"
    ] == ()


def _position(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["source_producer"], row["source_partition"], row["source_offset"]


def _gate(pipeline: Pipeline) -> Any:
    (run,) = pipeline.ledger.runs()
    return gate_of(run, pipeline.ledger, pipeline.transport, pipeline.settings)


def test_a_closing_artifact_lies_beside_the_evidence(pipeline: Pipeline) -> None:
    pipeline.ingest(event("e9"), run="clean")
    pipeline.run()
    stores = pipeline.ledger, pipeline.transport, pipeline.settings
    close_green("clean", *stores)

    assert open_evidence_store(pipeline.settings).read(
        closure_path("clean")
    ) == pipeline.ledger.closure("clean")
    assert verify_run("clean", *stores).verified


def test_headers_that_are_no_text_do_not_stop_an_envelope_from_being_recomputed() -> None:
    import hashlib

    from admitone.core.identity import identity_of
    from admitone.evidence.audit.identities import recomputed
    from admitone.transport.port import HEADERS_TYPE

    headers = [
        [{"key": "runId", "value": b"h"}],
        [{"key": "runId", "value": b"\xff"}],
        None,
        [{"key": "eventClass", "value": b"c"}, {"key": "runId", "value": b"h"}],
        [],
    ]
    values = [event("e"), event("e", runId="m"), event("e"), event("e"), event("e", eventClass="x")]
    names = [("h", "page_view"), ("m", "page_view"), ("r", "page_view"), ("h", "c"), ("r", "x")]
    table = pa.table({"value": values, "headers": pa.array(headers, HEADERS_TYPE)})
    identities = pa.array([identity_of(*name, "e") for name in names], pa.binary(32))
    hashes = pa.array([hashlib.sha256(b'{"url":"/a"}').digest()] * 5, pa.binary(32))
    for start in range(5):
        piece = table.slice(start)
        columns = (piece["value"], piece["headers"].combine_chunks())
        said = identities[start:], hashes[start:]
        assert recomputed("r", *columns).differing(*said) == 0
        assert recomputed("q", *columns).differing(*said) == (
            sum(name[0] == "r" for name in names[start:])
        )
