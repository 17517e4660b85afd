"""A ledger that goes back under a running pipeline is noticed before anything is decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from admitone.core.errors import Fenced, IntegrityError, MarkMoved
from tests.servers.copies import copy_of
from tests.support.goes_back import SECTIONS, Query, deliver, goes_back
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path, **SECTIONS)


@pytest.mark.parametrize("seed", range(4))
def test_a_query_stops_and_the_remedy_mends_it(seed: int, tmp_path: Path) -> None:
    """`make faults` does it 50 times on each store."""
    assert goes_back(tmp_path, seed) == []


def test_a_ledger_that_lost_nothing_is_gone_on_with(pipeline: Pipeline, tmp_path: Path) -> None:
    query = Query(pipeline)
    deliver(pipeline, 0, event("a"), event("b"))
    query.batch()
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    query.batch()
    put_back()
    deliver(pipeline, 0, event("a"), event("c"))
    query.batch()

    assert [row["verdict"] for row in pipeline.decisions()] == [
        "ADMITTED", "ADMITTED", "DUPLICATE", "ADMITTED",
    ]  # fmt: skip


def test_a_quiet_partition_does_not_admit_what_another_one_had(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Its own mark is where it was: only the driver, who knows all sources, can tell."""
    query = Query(pipeline)
    deliver(pipeline, 1, event("other"))
    query.batch()
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, 0, event("a"))
    query.batch()
    put_back()
    deliver(pipeline, 1, event("a"))

    with pytest.raises(IntegrityError, match="went back under a running pipeline"):
        query.batch()
    assert pipeline.verdicts("a") == []


def test_a_task_that_asks_an_older_server_than_its_driver_leaves_nothing_out(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    query = Query(pipeline)
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, 0, event("a"))
    query.batch()
    deliver(pipeline, 0, event("b"))

    with pytest.raises(IntegrityError, match="reconcile --restored"):
        query.batch(within=put_back)
    assert pipeline.verdicts("b") == []


def test_a_task_that_was_interrupted_says_so_instead_of_being_overtaken(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    generation = pipeline.boundary.start(pipeline.topic)
    deliver(pipeline, 0, *(event(f"e{number}") for number in range(12)))
    owned = pipeline.own(0, generation)
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    blocks = owned.admit(pipeline.records(0))
    next(blocks)
    put_back()

    with pytest.raises(IntegrityError, match="reconcile --restored"):
        next(blocks)


def test_no_pair_is_answered_whose_block_is_another_one_now(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Another worker has decided everything again, in other blocks, when the first one gets its partition back."""
    query = Query(pipeline)
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, 0, event("a"))
    query.batch()
    put_back()
    elsewhere = Pipeline(tmp_path, **SECTIONS)
    generation = elsewhere.ledger.take_generation("admitone")
    # Kafka's producer epochs begin again with every worker process: there no fence tells that the ledger is older.
    source = pipeline.boundary.source(pipeline.topic, 0)
    elsewhere.ledger.take_epoch(source, None, beyond=10)
    deliver(pipeline, 1, event("b"))
    list(elsewhere.own(1, generation).admit(elsewhere.records(1)))
    list(elsewhere.own(0, generation).admit(elsewhere.records(0)))
    deliver(pipeline, 0, event("a"))

    with pytest.raises(IntegrityError, match="another one under this number"):
        pipeline.boundary.own(pipeline.topic, 0, generation, query.session)
    owned = pipeline.boundary.own(pipeline.topic, 0, generation, query.session)
    list(owned.admit(pipeline.records(0)))
    known = sum(info.cached for info in pipeline.ledger.sources())
    assert known == 0, "what was remembered is forgotten"


def test_a_block_is_not_concluded_under_a_number_that_was_given_again(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    generation = pipeline.boundary.start(pipeline.topic)
    deliver(pipeline, 0, event("a"))
    deliver(pipeline, 1, event("b"))
    zero, one = pipeline.own(0, generation), pipeline.boundary.source(pipeline.topic, 1)
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    append = pipeline.transport.append
    claimed: list[int] = []

    def swapped(*parts: object) -> object:
        pipeline.transport.append = append  # type: ignore[method-assign]
        claimed.extend(block.block_id for block in pipeline.ledger.blocks())
        put_back()
        list(pipeline.own(1, generation).admit(pipeline.records(1)))
        return append(*parts)  # type: ignore[arg-type]

    pipeline.transport.append = swapped  # type: ignore[method-assign, assignment]
    with pytest.raises((MarkMoved, Fenced, IntegrityError)):
        list(zero.admit(pipeline.records(0)))

    (block,) = pipeline.ledger.blocks()
    assert [block.block_id] == claimed
    assert (block.source, [row["event_id"] for row in pipeline.decisions()]) == (one, ["b"])
