"""A publish that fails, at every moment it can fail: nothing is lost, nothing twice, "unknown" is not "absent"."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.reconciliation import look_only, reconcile, retract
from admitone.core.decisions import BlockState
from admitone.core.errors import AdmitoneError, Fenced, NeedsFence, NotFound, ServiceUnreachable
from admitone.demo.traffic import GeneratorOptions, TruthRecorder, generate
from admitone.evidence.audit.gate import gate_of
from admitone.ledger.books import books
from tests.support.flaky import flaky
from tests.support.logs import delete_topic, on_the_log
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")


EVENTS = [event(f"e{number}") for number in range(6)]
NAMES = [f"e{number}" for number in range(6)]


@pytest.mark.parametrize("word", ["not-written", "lost-before", "fenced"])
def test_what_was_not_written_is_given_back_and_read_again(word: str, tmp_path: Path) -> None:
    pipeline, _ = flaky(tmp_path, "fine", word)
    pipeline.ingest(*EVENTS)
    with pytest.raises((AdmitoneError, TimeoutError)):
        pipeline.run()
    assert len(on_the_log(pipeline)) == 4
    pipeline.run()

    assert on_the_log(pipeline) == NAMES
    assert {row["verdict"] for row in pipeline.decisions()} == {"ADMITTED"}
    assert pipeline.problems() == []


def test_a_block_whose_producer_must_be_fenced_first_is_published_behind_the_fence(
    tmp_path: Path,
) -> None:
    pipeline, transport = flaky(tmp_path, "needs-fence", "fine", "needs-fence")
    pipeline.ingest(*EVENTS)
    pipeline.run()

    assert on_the_log(pipeline) == NAMES
    assert transport.appends == 4
    assert {row["verdict"] for row in pipeline.decisions()} == {"ADMITTED"}
    assert pipeline.problems() == []


def test_what_a_log_that_fenced_without_a_successor_took_is_found(tmp_path: Path) -> None:
    pipeline, _ = flaky(tmp_path, "fenced-after")
    pipeline.ingest(*EVENTS)
    pipeline.run()

    assert on_the_log(pipeline) == NAMES
    assert {row["verdict"] for row in pipeline.decisions()} == {"ADMITTED"}
    assert pipeline.problems() == []


def test_a_worker_that_must_fence_itself_does_not_fence_its_successor(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path)
    pipeline.ingest(*EVENTS)
    generation = pipeline.boundary.start(pipeline.topic)
    owned = pipeline.own(0, generation)
    successor = Pipeline(tmp_path, transport={"raw_partitions": 1}, pipeline={"max_block": 4})

    def overtaken(*_: Any) -> Any:
        list(successor.own(0, generation).admit(successor.records(0)))
        raise NeedsFence("something of an earlier append is still on its way")

    transport.append = overtaken  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        list(owned.admit(pipeline.records(0)))
    pipeline.run()

    assert on_the_log(pipeline) == NAMES
    assert pipeline.problems() == []


def test_a_late_publish_whose_producer_must_be_fenced_first_goes_on_behind_the_fence(
    tmp_path: Path,
) -> None:
    pipeline, transport = flaky(tmp_path, "down-before", "refuse", "needs-fence")
    pipeline.ingest(*EVENTS[:3])
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    pipeline.run()

    assert on_the_log(pipeline) == NAMES[1:3]
    assert pipeline.verdicts("e0") == [("QUARANTINED", "PUBLISH_FAILED")]
    assert pipeline.problems() == []


def test_a_write_whose_answer_was_lost_is_found_and_the_pipeline_goes_on(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "lost-after", "lost-after")
    pipeline.ingest(*EVENTS)
    pipeline.run()

    assert on_the_log(pipeline) == NAMES
    assert transport.appends == 2
    assert {row["verdict"] for row in pipeline.decisions()} == {"ADMITTED"}
    assert pipeline.problems() == []


@pytest.mark.parametrize(
    ("word", "action"), [("down-before", "PUBLISHED_LATE"), ("down-after", "FOUND")]
)
def test_what_the_log_cannot_be_asked_about_is_kept_and_resolved_later(
    word: str, action: str, tmp_path: Path
) -> None:
    pipeline, transport = flaky(tmp_path, word)
    pipeline.ingest(*EVENTS)
    with pytest.raises(ServiceUnreachable, match="kept as AMBIGUOUS"):
        pipeline.run()
    before = pipeline.decisions()
    (run,) = books(pipeline.ledger)["runs"]
    assert {(row["verdict"], row["reason"]) for row in before} == {("AMBIGUOUS", "PUBLISH_UNKNOWN")}
    assert (run["deliveries"], run["ambiguous"], run["balanced"]) == (4, 4, True)
    hashes = [block.evidence_hash for block in pipeline.ledger.blocks()]

    transport.heal()
    pipeline.run()

    assert on_the_log(pipeline) == NAMES
    after = pipeline.decisions()
    assert {row["verdict"] for row in after} == {"ADMITTED"}
    assert [row["resolution"]["action"] for row in after[:4]] == [action] * 4
    assert all(row["bus"]["published_at"] for row in after)
    assert [block.evidence_hash for block in pipeline.ledger.blocks()][:1] == hashes
    (run,) = books(pipeline.ledger)["runs"]
    assert (run["admitted"], run["ambiguous"], run["balanced"]) == (6, 0, True)
    assert pipeline.problems() == []


def test_a_late_publish_has_a_producer_of_its_own_and_names_its_origin(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(*EVENTS[:3])
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    pipeline.run()
    topic = pipeline.transport.topic("admitted.traffic")
    (source,) = [info.source for info in pipeline.ledger.sources()]
    for partition, end in enumerate(pipeline.transport.ends(topic)):
        for batch in pipeline.transport.read(topic, partition, 0, end):
            for number, (key, headers) in enumerate(
                zip(
                    batch.column("key").to_pylist(),
                    batch.column("headers").to_pylist(),
                    strict=True,
                )
            ):
                origin = next(h["value"] for h in headers if h["key"] == "origin")
                assert key[:8] != origin[:8]
                assert int.from_bytes(origin[:8], "big", signed=True) == source.producer_id
                assert int.from_bytes(key[12:], "big") == number
                assert int.from_bytes(origin[12:], "big") == number


def test_a_write_that_arrives_late_is_found_before_the_fence_and_refused_behind_it(
    tmp_path: Path,
) -> None:
    pipeline, transport = flaky(tmp_path, "delayed")
    pipeline.ingest(*EVENTS[:3])
    with pytest.raises(TimeoutError):
        pipeline.run()
    with pytest.raises(AdmitoneError, match="FENCED"):
        transport.arrive()
    pipeline.run()
    assert on_the_log(pipeline) == NAMES[:3]
    assert pipeline.problems() == []


def test_followers_of_an_ambiguous_event_follow_its_outcome(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(event("a"), event("a"), event("a", {"loadTimeMs": 1}))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    other = Pipeline(
        tmp_path,
        pipeline={"name": "other"},
        transport={"raw_topic": "other", "raw_partitions": 1},
    )
    other.ingest(event("a"), event("a", {"loadTimeMs": 2}), event("b"))
    other.run()
    assert pipeline.verdicts("a") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")] * 5
    assert pipeline.ledger.anomalies() == []

    pipeline.run()
    assert pipeline.verdicts("a") == [
        ("ADMITTED", None),
        ("DUPLICATE", None),
        ("QUARANTINED", "PAYLOAD_MISMATCH"),
        ("DUPLICATE", None),
        ("QUARANTINED", "PAYLOAD_MISMATCH"),
    ]
    assert on_the_log(pipeline) == ["a", "b"]
    assert len(pipeline.ledger.anomalies()) == 2
    other.run()
    assert pipeline.problems() == []


def test_a_follower_in_flight_while_its_first_is_resolved_is_judged_by_the_outcome(
    tmp_path: Path,
) -> None:
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(event("a"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    other = Pipeline(
        tmp_path, pipeline={"name": "other"}, transport={"raw_topic": "other", "raw_partitions": 1}
    )
    other.ingest(event("a"), event("c"))
    publish = other.transport.append

    def resolve_meanwhile(*args: Any) -> Any:
        list(reconcile(pipeline.boundary, pipeline="admitone"))
        return publish(*args)

    other.transport.append = resolve_meanwhile  # type: ignore[method-assign]
    other.run()
    pipeline.run()

    assert pipeline.verdicts("a") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert pipeline.problems() == []


def test_unknown_is_never_taken_for_absent_and_can_only_be_given_up(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-after")
    pipeline.ingest(*EVENTS[:2])
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    delete_topic(pipeline.transport, "admitted.traffic")
    pipeline.transport.create_topic("admitted.traffic", 4)
    pipeline.boundary.topics.accept("admitted.traffic", 1, "ann", "made anew")
    pipeline.ingest(event("e0"))
    pipeline.run()
    pipeline.run()
    assert on_the_log(pipeline) == []
    parts = (pipeline.ledger, pipeline.transport, pipeline.boundary.options)
    assert [entry.how for entry in look_only(*parts)] == ["unknown: the log cannot tell"]
    assert pipeline.verdicts("e0") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")] * 2
    (block,) = [block for block in pipeline.ledger.blocks() if block.state == "AMBIGUOUS"]

    retract(pipeline.boundary, block.block_id, "ann", "the topic was lost")
    assert pipeline.verdicts("e0") == [("QUARANTINED", "IDENTITY_RETRACTED")] * 2
    pipeline.ingest(event("e1"))
    pipeline.run()
    assert pipeline.verdicts("e1") == [("QUARANTINED", "IDENTITY_RETRACTED")] * 2
    assert on_the_log(pipeline) == []
    assert pipeline.decisions()[0]["resolution"]["author"] == "ann"
    with pytest.raises(NotFound):
        retract(pipeline.boundary, block.block_id, "ann", "again")
    assert pipeline.problems() == []


def test_records_the_broker_refuses_are_quarantined_and_the_rest_published(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "refuse")
    pipeline.ingest(event("a"), event("b"), event("a"), event("c"))
    pipeline.run()

    assert on_the_log(pipeline) == ["b", "c"]
    assert pipeline.verdicts("a") == [("QUARANTINED", "PUBLISH_FAILED")] * 2
    transport._refused.clear()
    pipeline.ingest(event("a"))
    pipeline.run()
    assert pipeline.verdicts("a")[-1] == ("ADMITTED", None)
    assert on_the_log(pipeline) == ["a", "b", "c"]
    assert pipeline.problems() == []


def test_refused_records_are_known_to_recovery_and_to_reconciliation(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "refuse", "down-after")
    pipeline.ingest(event("a"), event("b"), event("c"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    assert pipeline.verdicts("a") == [("QUARANTINED", "PUBLISH_FAILED")]
    assert pipeline.verdicts("b") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")]
    transport.heal()
    pipeline.run()
    assert on_the_log(pipeline) == ["b", "c"]
    assert pipeline.verdicts("b") == [("ADMITTED", None)]

    pipeline, transport = flaky(tmp_path, "refuse", "lost-after")
    pipeline.ingest(event("d"), event("f"))
    pipeline.run()
    assert pipeline.verdicts("d") == [("QUARANTINED", "PUBLISH_FAILED")]
    assert on_the_log(pipeline) == ["b", "c", "f"]
    assert pipeline.problems() == []


def test_what_the_broker_refuses_of_a_late_publish_is_quarantined_and_the_rest_published(
    tmp_path: Path,
) -> None:
    pipeline, transport = flaky(tmp_path, "down-before", "refuse")
    pipeline.ingest(event("a"), event("b"), event("a"), event("a", {"loadTimeMs": 1}))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    other = Pipeline(
        tmp_path, pipeline={"name": "other"}, transport={"raw_topic": "other", "raw_partitions": 1}
    )
    other.ingest(event("a"), event("b"), event("c"))
    other.run()
    pipeline.run()
    other.run()

    assert pipeline.verdicts("a") == [("QUARANTINED", "PUBLISH_FAILED")] * 4
    assert pipeline.verdicts("b") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert on_the_log(pipeline) == ["b", "c"]
    assert not pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])
    (run,) = books(pipeline.ledger)["runs"]
    assert (run["deliveries"], run["ambiguous"], run["balanced"]) == (7, 0, True)
    assert pipeline.problems() == []
    gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)
    assert [(each.kind, each.count) for each in gate.blockers] == [("quarantined", 4)]

    # A refused identity counts as absent.
    transport._refused.clear()
    pipeline.ingest(event("a"))
    pipeline.run()
    assert pipeline.verdicts("a")[-1] == ("ADMITTED", None)
    assert on_the_log(pipeline) == ["a", "b", "c"]
    assert pipeline.problems() == []


def test_a_late_publish_of_which_everything_is_refused_is_resolved(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-before", "refuse")
    pipeline.ingest(event("a"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    pipeline.run()

    assert pipeline.verdicts("a") == [("QUARANTINED", "PUBLISH_FAILED")]
    assert on_the_log(pipeline) == []
    assert pipeline.problems() == []


def test_a_block_that_is_given_up_keeps_what_the_broker_refused_of_it_apart(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-before", "refuse", "lost-before")
    pipeline.ingest(event("a"), event("b"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    (unknown,) = reconcile(pipeline.boundary)
    assert unknown.state is BlockState.AMBIGUOUS
    retract(pipeline.boundary, unknown.block.block_id, "ann", "lost")

    assert pipeline.verdicts("a") == [("QUARANTINED", "PUBLISH_FAILED")]
    assert pipeline.verdicts("b") == [("QUARANTINED", "IDENTITY_RETRACTED")]


@pytest.mark.parametrize(
    ("plan", "how"),
    [
        (("down-after",), "found on the log"),
        (("down-before", "lost-after"), "published late, found on the log"),
    ],
    ids=["as it was", "late"],
)
def test_what_is_on_the_log_is_settled_instead_of_given_up(
    plan: tuple[str, ...], how: str, tmp_path: Path
) -> None:
    pipeline, transport = flaky(tmp_path, *plan)
    pipeline.ingest(event("a"), event("b"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    if "late" in how:
        (unknown,) = reconcile(pipeline.boundary)
        assert unknown.state is BlockState.AMBIGUOUS
    (block,) = pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])

    found = retract(pipeline.boundary, block.block_id, "ann", "cannot wait")
    assert (found.state, found.how) == (BlockState.SETTLED, how)
    assert pipeline.verdicts("a") == pipeline.verdicts("b") == [("ADMITTED", None)]
    assert pipeline.decisions()[0]["resolution"]["author"] == "ann"
    pipeline.run()
    assert on_the_log(pipeline) == ["a", "b"]
    assert pipeline.problems() == []


def test_the_gate_stays_red_until_ambiguity_is_resolved(tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(event("a"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()

    def blockers() -> list[str]:
        gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)
        return [blocker.kind for blocker in gate.blockers]

    assert "ambiguous" in blockers()
    pipeline.run()
    assert blockers() == []


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_failures_ends_in_the_truth(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    options = GeneratorOptions(
        300, seed=seed, duplicates=0.3, contradictions=0.04, malformed=0.05, late=0.02
    )
    recorder = TruthRecorder(options)
    words = ["fine", "not-written", "lost-before", "lost-after", "down-before", "down-after"]
    pipeline, transport = flaky(
        tmp_path,
        *rng.choices(words, k=12),
        pipeline={"max_block": rng.choice((7, 25, 60))},
        transport={"raw_partitions": 2},
    )
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))))
    for _ in range(40):
        try:
            pipeline.run()
            break
        except (AdmitoneError, TimeoutError, ConnectionError):
            # The first attempt may end before anything is decided.
            assert all(run["balanced"] for run in books(pipeline.ledger)["runs"])
            transport.heal()
    list(reconcile(pipeline.boundary))
    pipeline.run()

    assert pipeline.problems(recorder.truth()) == []
