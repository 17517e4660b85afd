"""A topic that drifts (RTE-4): what was meant for it is kept, the others go on; mended, all of it gets in once."""

from __future__ import annotations

from pathlib import Path

import pytest

from admitone.boundary.reconciliation import reconcile
from admitone.boundary.release import Report, Signature, release
from admitone.core.contract import Kind
from admitone.core.decisions import BlockState, Reason, Verdict
from admitone.core.errors import CircuitOpen, ContractDrift, NotFound, NotWritten
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.originals import open_deliveries
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from admitone.transport.topic_contract import raw_topic
from tests.support.closing import close_green, stores_of
from tests.support.drift import (
    MAP,
    ORDERS,
    VIEWS,
    Change,
    Meanwhile,
    add_partitions,
    delete,
    on_topic,
    order,
    pairs,
    recreate,
    two_topics,
)
from tests.support.flaky import Flaky
from tests.support.ledgers import must_balance
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")

DRIFT = ("QUARANTINED", "CONTRACT_DRIFT")
ADMITTED = ("ADMITTED", None)


def mend(pipeline: Pipeline, change: Change, home: Path) -> Pipeline:
    """Do what the remedy says."""
    if change is delete:
        assert pipeline.boundary.topics.create(7, "ann", "made again") == [ORDERS]
    elif change is recreate:
        assert pipeline.boundary.topics.accept(ORDERS, 7, "ann", "lost with its disk")
    else:
        return two_topics(home, MAP.replace("partitions = 3", "partitions = 5"))
    return two_topics(home)


def released(pipeline: Pipeline) -> Report:
    chosen = in_quarantine(pipeline.ledger, Filter(reason=Reason.CONTRACT_DRIFT))
    fetch = open_deliveries(pipeline.settings, pipeline.ledger)
    return release(pipeline.boundary, fetch, chosen, Signature("ann", "mended"))


def contract_blockers(pipeline: Pipeline) -> list[str]:
    gate = gate_of("default", *stores_of(pipeline))
    return [blocker.what for blocker in gate.blockers if blocker.kind == "contract"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [(delete, Kind.MISSING), (recreate, Kind.RECREATED), (add_partitions, Kind.PARTITIONS)],
)
def test_what_was_meant_for_a_drifted_topic_is_kept_and_gets_in_once_it_is_mended(
    change: Change, kind: Kind, tmp_path: Path
) -> None:
    pipeline = two_topics(tmp_path)
    pipeline.ingest(*pairs(1, 2))
    pipeline.run()
    change(pipeline)
    pipeline.ingest(*pairs(3, 4), order("o3"))
    pipeline.run()

    assert pipeline.verdicts("v3") == pipeline.verdicts("v4") == [ADMITTED]
    assert pipeline.verdicts("o3") == [DRIFT, DRIFT]
    assert pipeline.verdicts("o4") == [DRIFT]
    assert [
        (checked.topic, [each.kind for each in checked.differences])
        for checked in pipeline.boundary.topics.check()
    ] == [(VIEWS, []), (ORDERS, [kind])]
    (blocker,) = contract_blockers(pipeline)
    assert ORDERS in blocker
    assert released(pipeline).refused == {Reason.CONTRACT_DRIFT: 3}

    mended = mend(pipeline, change, tmp_path)
    report = released(mended)
    mended.run()

    assert report.released == {Verdict.ADMITTED: 2, Verdict.DUPLICATE: 1}
    assert on_topic(mended, VIEWS) == ["v1", "v2", "v3", "v4"]
    before = ["o1", "o2"] if change is add_partitions else []
    assert on_topic(mended, ORDERS) == [*before, "o3", "o4"]
    must_balance(mended.ledger)
    assert close_green("default", *stores_of(mended))["books"]["admitted"] == 8


def test_the_first_start_makes_the_topics_and_remembers_which(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path)
    assert [checked.is_new for checked in pipeline.boundary.topics.check()] == [True, True]
    pipeline.run()
    pipeline.run()
    accepted = pipeline.ledger.accepted_topics(pipeline.transport.cluster)

    assert [(each.topic, each.topic_id) for each in accepted] == [
        (name, pipeline.transport.topic(name).topic_id) for name in (VIEWS, ORDERS)
    ]
    assert {each.author for each in accepted} == {"admitone"}


def test_a_topic_that_was_there_before_is_accepted_when_it_is_as_agreed(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path)
    pipeline.transport.create_topic(VIEWS, 2)
    pipeline.transport.create_topic(ORDERS, 9)
    pipeline.ingest(*pairs(1))
    pipeline.run()

    assert pipeline.verdicts("v1") == [ADMITTED]
    assert pipeline.verdicts("o1") == [DRIFT]
    accepted = pipeline.ledger.accepted_topics(pipeline.transport.cluster)
    assert [(each.topic, each.reason) for each in accepted] == [(VIEWS, "seen for the first time")]
    mended = two_topics(tmp_path, MAP.replace("partitions = 3", "partitions = 9"))
    mended.run()
    assert len(mended.ledger.accepted_topics(mended.transport.cluster)) == 2
    assert released(mended).released == {Verdict.ADMITTED: 1}


def test_where_topics_may_not_be_created_a_missing_one_is_drift_from_the_start(
    tmp_path: Path,
) -> None:
    two_topics(tmp_path).transport.create_topic(VIEWS, 2)
    pipeline = two_topics(tmp_path, transport={"raw_partitions": 1, "create_topics": False})
    pipeline.ingest(*pairs(1))
    pipeline.run()
    assert pipeline.verdicts("o1") == [DRIFT]
    assert pipeline.verdicts("v1") == [ADMITTED]
    assert pipeline.boundary.topics.create(7, "ann", "asked for") == [ORDERS]
    assert released(two_topics(tmp_path)).released == {Verdict.ADMITTED: 1}


def test_a_topic_that_vanished_is_not_made_again_without_being_asked(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path)
    pipeline.run()
    delete(pipeline)
    for _ in range(2):
        pipeline.run()
        with pytest.raises(NotFound):
            pipeline.transport.topic(ORDERS)


def test_what_is_bad_in_itself_keeps_its_own_reason(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path)
    pipeline.run()
    delete(pipeline)
    pipeline.ingest(order("o1", schemaVersion=9), order("o2", partitionKey=None), order("o3"))
    pipeline.run()
    assert [row["reason"] for row in pipeline.decisions()] == [
        "UNKNOWN_SCHEMA_VERSION", "NO_PARTITION_FIELD", "CONTRACT_DRIFT",
    ]  # fmt: skip


def test_drift_does_not_open_the_circuit_and_hides_nothing_from_it(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path, pipeline={"quarantine_window": 12})

    def run(bad: int, orders: int) -> None:
        pipeline.ingest(*[b"{}"] * bad, *(order(f"o{number}") for number in range(orders)))
        pipeline.run()

    pipeline.ingest(*(event(f"v{number}") for number in range(12)))
    pipeline.run()
    delete(pipeline)
    run(bad=0, orders=60)
    run(bad=8, orders=30)
    reasons = [row["reason"] for row in pipeline.decisions()]
    assert (reasons.count("CONTRACT_DRIFT"), reasons.count("NOT_AN_ENVELOPE")) == (90, 8)
    with pytest.raises(CircuitOpen, match="14 of the last 14 deliveries"):
        run(bad=14, orders=5)
    assert len(pipeline.decisions()) == len(reasons)


@pytest.mark.parametrize("change", [delete, recreate, add_partitions])
def test_drift_between_the_check_and_the_claim_is_found_at_the_claim(
    change: Change, tmp_path: Path
) -> None:
    pipeline = two_topics(tmp_path, pipeline={"max_block": 3})
    pipeline.ingest(*pairs(1, 2, 3))
    owned = pipeline.own(0, pipeline.boundary.start(pipeline.topic))
    admitting = owned.admit(pipeline.records(0))
    assert next(admitting).admitted == 3
    change(pipeline)
    assert [block.admitted for block in admitting] == [1]

    assert (
        pipeline.verdicts("o1") == pipeline.verdicts("v2") == pipeline.verdicts("v3") == [ADMITTED]
    )
    assert pipeline.verdicts("o2") == pipeline.verdicts("o3") == [DRIFT]
    assert on_topic(pipeline, VIEWS) == ["v1", "v2", "v3"]
    if change is recreate:
        assert on_topic(pipeline, ORDERS) == []


def test_a_topic_recreated_between_the_claim_and_the_publish_is_never_called_published(
    tmp_path: Path,
) -> None:
    pipeline = two_topics(tmp_path, pipeline={"max_block": 4})
    pipeline.ingest(*pairs(1, 2, 3, 4))
    transport = Meanwhile(pipeline, lambda: recreate(pipeline))
    pipeline.boundary.transport = transport  # type: ignore[assignment]
    pipeline.run()

    first, second = pipeline.ledger.blocks()
    assert (first.state, second.state) == (BlockState.AMBIGUOUS, BlockState.SETTLED)
    assert pipeline.verdicts("o1") == pipeline.verdicts("v1") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")]
    assert pipeline.verdicts("o3") == [DRIFT]
    assert pipeline.verdicts("v3") == [ADMITTED]
    assert "ambiguous" in [b.kind for b in gate_of("default", *stores_of(pipeline)).blockers]


def test_a_topic_deleted_between_the_claim_and_the_publish_gives_the_block_back(
    tmp_path: Path,
) -> None:
    pipeline = two_topics(tmp_path)
    pipeline.ingest(*pairs(1, 2))
    pipeline.boundary.transport = Meanwhile(pipeline, lambda: delete(pipeline))  # type: ignore[assignment]
    with pytest.raises(NotWritten, match="topics check"):
        pipeline.run()
    assert [block.state for block in pipeline.ledger.blocks()] == [BlockState.ABORTED]
    pipeline.run()

    assert pipeline.verdicts("v1") == pipeline.verdicts("v2") == [ADMITTED]
    assert pipeline.verdicts("o1") == pipeline.verdicts("o2") == [DRIFT]
    assert on_topic(pipeline, VIEWS) == ["v1", "v2"]


@pytest.mark.parametrize("change", [recreate, add_partitions])
def test_a_block_of_unknown_fate_is_not_published_late_to_a_topic_that_drifted(
    change: Change, tmp_path: Path
) -> None:
    pipeline = two_topics(tmp_path)
    transport = Flaky(pipeline.transport, "down-before")
    pipeline.boundary.transport = transport  # type: ignore[assignment]
    pipeline.ingest(*pairs(1))
    with pytest.raises(Exception, match="kept as AMBIGUOUS"):
        pipeline.run()
    transport.heal()
    change(pipeline)
    pipeline.boundary.take_topics()
    (found,) = reconcile(pipeline.boundary)

    assert found.state is BlockState.AMBIGUOUS
    assert "not as agreed" in found.how
    assert on_topic(pipeline, VIEWS) == []


def test_a_running_pipeline_looks_again_after_the_interval(tmp_path: Path) -> None:
    clock = [1_000]
    pipeline = two_topics(tmp_path, transport={"raw_partitions": 1, "check_interval": "10s"})
    pipeline.boundary.stopwatch = lambda: clock[0]
    generation = pipeline.boundary.start(pipeline.topic)
    delete(pipeline)
    clock[0] += 9_999
    assert set(pipeline.boundary.writable) == {VIEWS, ORDERS}
    clock[0] += 1
    assert set(pipeline.boundary.writable) == {VIEWS}

    pipeline.boundary.topics.create(7, "ann", "made again")
    pipeline.ingest(order("o1"))
    clock[0] += 10_000
    list(pipeline.own(0, generation).admit(pipeline.records(0)))
    assert pipeline.verdicts("o1") == [ADMITTED]


def test_only_topics_of_the_map_that_are_there_can_be_accepted(tmp_path: Path) -> None:
    topics = two_topics(tmp_path).boundary.topics
    with pytest.raises(NotFound, match=f"'nothing' is not in the map.*{VIEWS}"):
        topics.accept("nothing", 7, "ann", "no")
    with pytest.raises(NotFound, match="topics create"):
        topics.accept(ORDERS, 7, "ann", "no")


def test_a_raw_topic_that_is_not_as_agreed_is_refused_with_the_remedy(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path)
    add_partitions(pipeline, "raw", to=3)
    with pytest.raises(ContractDrift, match=r"expected 1, found 3.*set raw_partitions = 3"):
        raw_topic(pipeline.settings, pipeline.transport)
    delete_topic(pipeline.transport, "raw")
    settings = pipeline.settings.model_copy(
        update={
            "transport": pipeline.settings.transport.model_copy(update={"create_topics": False})
        }
    )
    with pytest.raises(ContractDrift, match=r"is missing.*admitone topics create"):
        raw_topic(settings, pipeline.transport)
    assert raw_topic(pipeline.settings, pipeline.transport).partitions == 1
