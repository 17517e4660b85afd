"""What every ledger guarantees, checked on each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from admitone.core.decisions import REASON_CODES, VERDICT_CODES, BlockState, Reason, Verdict
from admitone.core.errors import AdmitoneError, Fenced, MarkMoved, RunIsRed
from admitone.ledger.books import books
from admitone.ledger.model import (
    Block,
    Blocked,
    Filter,
    Mark,
    Outcome,
    Source,
)
from admitone.ledger.port import Ledger
from tests.support.closures import closure
from tests.support.ledgers import (
    AGAIN,
    CONTRADICTION,
    NEW,
    NOW,
    ONE,
    TWO,
    OpenLedger,
    claim,
    facts,
    granted,
    must_balance,
    settle,
    verdicts,
)


def test_the_first_delivery_is_new_the_same_again_a_duplicate_another_payload_a_contradiction(
    ledger: Ledger,
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    first = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "y"))))
    settle(ledger, epoch, first)
    second = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "z"), ("c", "x"), start=2)))

    assert verdicts(first) == [NEW, NEW]
    assert verdicts(second) == [AGAIN, CONTRADICTION, NEW]
    assert second.verdicts["first_block"].to_pylist() == [first.block.block_id] * 2 + [None]
    assert second.verdicts["first_ordinal"].to_pylist() == [0, 0, None]


def test_new_blocks_get_numbers_beyond_those_that_the_log_names(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.register_source(ONE, "pipeline", "raw", "topic-1")
    generation = ledger.take_generation("pipeline")
    numbers = []
    for number, beyond in enumerate((70, 0, 5, 200)):
        epoch = ledger.take_epoch(ONE, generation)
        ledger.number_blocks_beyond(beyond)
        claimed = granted(claim(ledger, ONE, epoch, facts((f"e{number}", "p"), start=number)))
        settle(ledger, epoch, claimed)
        numbers.append(claimed.block.block_id)

    assert numbers == [71, 72, 73, 201]


def test_within_a_block_the_lower_offset_wins(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "y"), ("a", "x"))))

    assert verdicts(claimed) == [NEW, CONTRADICTION, AGAIN]


def test_a_contradiction_leaves_one_open_anomaly_however_often_it_comes(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(
        ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "y"), ("a", "y"))))
    )
    settle(
        ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "y"), ("a", "z"), start=3)))
    )

    assert len(ledger.anomalies("r")) == 2
    assert ledger.anomalies("other") == []


def test_an_identity_in_flight_elsewhere_ends_the_block_before_it_and_claims_nothing(
    ledger: Ledger,
) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    holding = granted(claim(ledger, ONE, one, facts(("a", "x"))))
    blocked = claim(ledger, TWO, two, facts(("b", "x"), ("a", "x"), ("c", "x")))

    assert blocked == Blocked(1, holding.block.block_id)
    assert [block.source for block in ledger.blocks()] == [ONE]
    assert verdicts(granted(claim(ledger, TWO, two, facts(("b", "x"))))) == [NEW]


def test_two_partitions_with_crossing_identities_cannot_deadlock(ledger: Ledger) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    first = granted(claim(ledger, ONE, one, facts(("a", "x"))))
    second = granted(claim(ledger, TWO, two, facts(("b", "x"))))
    settle(ledger, one, first)
    settle(ledger, two, second)

    assert verdicts(granted(claim(ledger, ONE, one, facts(("b", "x"), start=1)))) == [AGAIN]
    assert verdicts(granted(claim(ledger, TWO, two, facts(("a", "x"), start=1)))) == [AGAIN]


def test_an_aborted_block_leaves_its_identities_free(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))), BlockState.ABORTED)

    assert ledger.mark(ONE) == Mark()
    assert verdicts(granted(claim(ledger, ONE, epoch, facts(("a", "y"))))) == [NEW]


def test_followers_of_an_ambiguous_event_are_ambiguous_too(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(
        ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))), BlockState.AMBIGUOUS
    )
    follower = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "y"), start=1)))

    unknown = (Verdict.AMBIGUOUS, Reason.PUBLISH_UNKNOWN)
    assert verdicts(follower) == [unknown, unknown]
    _, stored, _ = ledger.columns(1)
    assert VERDICT_CODES[stored["verdict"][0].as_py()] is Verdict.AMBIGUOUS


def test_a_record_the_broker_refused_counts_as_absent(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x"))))
    ledger.conclude(
        claimed.block, epoch, Outcome(BlockState.SETTLED, np.array([7]), NOW, NOW, refused=(0,))
    )
    _, stored, bus = ledger.columns(claimed.block.block_id)

    assert bus is not None
    assert bus["bus_offset"].to_pylist() == [None, 7]
    assert REASON_CODES[stored["reason"][0].as_py()] is Reason.PUBLISH_FAILED
    assert verdicts(granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x"), start=2)))) == [
        NEW,
        AGAIN,
    ]


def test_repeats_of_an_ambiguous_delivery_in_its_own_block_are_ambiguous_too(
    ledger: Ledger,
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "x"), ("a", "y"))))
    settle(ledger, epoch, claimed, BlockState.AMBIGUOUS)
    _, stored, _ = ledger.columns(claimed.block.block_id)

    assert [VERDICT_CODES[code] for code in stored["verdict"].to_pylist()] == [
        Verdict.AMBIGUOUS
    ] * 3
    assert ledger.anomalies() == []


def test_an_older_epoch_can_do_nothing(ledger: Ledger) -> None:
    old = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, old, facts(("a", "x"))))
    new = ledger.take_epoch(ONE, None)
    with pytest.raises(Fenced):
        ledger.check_epoch(ONE, old)
    with pytest.raises(Fenced):
        settle(ledger, old, claimed)
    with pytest.raises(Fenced):
        settle(ledger, old, claimed, BlockState.ABORTED)
    settle(ledger, new, claimed)
    with pytest.raises(Fenced):
        claim(ledger, ONE, old, facts(("b", "x"), start=1))

    assert [block.state for block in ledger.blocks()] == [BlockState.SETTLED]


def test_only_the_current_generation_is_given_epochs(ledger: Ledger) -> None:
    old = ledger.take_generation("pipeline")
    new = ledger.take_generation("pipeline")
    with pytest.raises(Fenced, match="let the newer pipeline run"):
        ledger.take_epoch(ONE, old)
    assert ledger.take_epoch(ONE, new) > 0


def test_a_block_must_follow_the_mark_and_nothing_in_flight(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    with pytest.raises(MarkMoved):
        claim(ledger, ONE, epoch, facts(("a", "x")), after=Mark(5, NOW))
    claim(ledger, ONE, epoch, facts(("a", "x")))
    with pytest.raises(MarkMoved, match="in flight"):
        claim(ledger, ONE, epoch, facts(("b", "x"), start=1))


def test_settling_twice_is_refused(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"))))
    settle(ledger, epoch, claimed)
    for state in (BlockState.SETTLED, BlockState.AMBIGUOUS, BlockState.ABORTED):
        with pytest.raises(AdmitoneError):
            settle(ledger, epoch, claimed, state)
    assert ledger.mark(ONE) == Mark(0, NOW)


def test_a_closed_run_takes_nothing_and_stays_closed(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    ledger.close_run(closure("r", b"artifact"), ledger.newest_block("r"))
    late = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x"), start=1)))

    closed = (Verdict.QUARANTINED, Reason.RUN_CLOSED)
    assert verdicts(late) == [closed, closed]
    assert ledger.closure("r") == b"artifact"
    assert ledger.runs() == {"r": "CLOSED"}
    with pytest.raises(RunIsRed):
        ledger.close_run(closure("r", b"other"), ledger.newest_block("r"))


def test_a_claim_between_the_check_and_the_closing_stops_the_closing(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    seen = ledger.newest_block("r")
    claim(ledger, ONE, epoch, facts(("b", "x"), start=1))
    with pytest.raises(RunIsRed):
        ledger.close_run(closure("r", b"artifact"), seen)
    assert ledger.runs() == {"r": "OPEN"}


def test_a_block_aborted_and_claimed_again_during_the_check_stops_the_closing(
    ledger: Ledger,
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    again = granted(claim(ledger, ONE, epoch, facts(("b", "x"), start=1)))
    seen = ledger.newest_block("r")
    settle(ledger, epoch, again, BlockState.ABORTED)
    claim(ledger, ONE, epoch, facts(("b", "x"), start=1))
    for guess in (seen, ledger.newest_block("r")):
        with pytest.raises(RunIsRed):
            ledger.close_run(closure("r", b"artifact"), guess)


def test_claims_at_the_same_time_admit_every_identity_once(
    open_ledger: OpenLedger, ledger: Ledger
) -> None:
    events = [(f"e{number}", "x") for number in range(200)]
    outcomes: list[tuple[Verdict, Reason | None]] = []
    sources = [Source(9, number) for number in range(4)]
    for source in sources:
        ledger.register_source(source, "pipeline", "raw", "topic-1")

    def work(source: Source) -> None:
        mine = open_ledger()
        epoch = mine.take_epoch(source, None)
        order = events[source.partition * 50 :] + events[: source.partition * 50]
        done = 0
        while done < len(order):
            size = 10
            found = claim(mine, source, epoch, facts(*order[done : done + size], start=done))
            while isinstance(found, Blocked):
                size = found.ordinal or size
                found = claim(mine, source, epoch, facts(*order[done : done + size], start=done))
            settle(mine, epoch, found)
            outcomes.extend(verdicts(found))
            done += found.block.deliveries
        mine.close()

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes.count(NEW) == 200
    assert outcomes.count(AGAIN) == 600
    must_balance(ledger)


def test_blocks_know_the_runs_of_their_deliveries(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    mixed = pa.concat_tables(
        [facts(("a", "x"), run="one"), facts(("a", "x"), ("b", "x"), start=1, run="two")]
    )
    claimed = granted(claim(ledger, ONE, epoch, mixed.unify_dictionaries()))
    settle(ledger, epoch, claimed)
    (block,) = ledger.blocks()

    assert isinstance(block, Block)
    assert block.runs == {"one": 1, "two": 2}
    assert verdicts(claimed) == [NEW, NEW, NEW]
    assert {run["run_id"]: run["admitted"] for run in books(ledger)["runs"]} == {"one": 1, "two": 2}


@pytest.mark.parametrize("run", ["a\0b", "\0", "x" * 3000, "'; --", "ж", '"quoted"'])
def test_a_run_may_have_any_name(ledger: Ledger, run: str) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"), run=run)))
    newest = ledger.newest_block(run)
    assert newest == claimed.block.block_id
    with pytest.raises(RunIsRed):
        ledger.close_run(closure(run, b"artifact"), newest)
    settle(ledger, epoch, claimed)
    assert [block.block_id for block, *_ in ledger.decided(Filter(run_id=run))] == [newest]
    assert list(ledger.decided(Filter(run_id=run + "x"))) == []
    ledger.close_run(closure(run, b"artifact"), newest)
    assert ledger.runs() == {run: "CLOSED"}


def test_a_source_knows_how_many_of_its_deliveries_are_decided(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "x")))))
    for state in (BlockState.ABORTED, BlockState.AMBIGUOUS):
        settle(
            ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x"), start=90))), state
        )
    granted(claim(ledger, ONE, epoch, facts(("c", "x"), start=91)))

    assert {info.source: info.decided for info in ledger.sources()} == {ONE: 3, TWO: 0}


def test_reading_goes_on_after_the_mark_or_after_offsets_that_hold_no_record(
    ledger: Ledger,
) -> None:
    def next_offsets() -> dict[Source, int | None]:
        return {info.source: info.next_offset for info in ledger.sources()}

    assert next_offsets() == {ONE: None, TWO: None}
    ledger.read_up_to({ONE: 5, TWO: 0})
    assert next_offsets() == {ONE: 5, TWO: 0}
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x"), start=8))))
    assert next_offsets() == {ONE: 9, TWO: 0}
    ledger.read_up_to({ONE: 7})
    assert next_offsets() == {ONE: 9, TWO: 0}
    ledger.read_up_to({ONE: 10})
    assert next_offsets() == {ONE: 10, TWO: 0}


def test_every_ledger_has_an_id_of_its_own_that_it_keeps(
    fresh_ledgers: Callable[[], OpenLedger],
) -> None:
    one, other = fresh_ledgers(), fresh_ledgers()

    assert one().ledger_id() == one().ledger_id() != other().ledger_id()
