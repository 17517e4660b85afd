"""What every ledger guarantees, checked on each of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from admitone.core.decisions import REASON_CODES, VERDICT_CODES, BlockState, Reason, Verdict
from admitone.core.errors import AdmitoneError, ConfigurationError, Fenced, MarkMoved, RunIsRed
from admitone.core.identity import identity_of
from admitone.ledger.books import books
from admitone.ledger.columns import FACTS_SCHEMA
from admitone.ledger.port import (
    Block,
    Blocked,
    Claim,
    Claimed,
    Destination,
    Ledger,
    Mark,
    Outcome,
    Source,
)
from admitone.ledger.sqlite import SqliteLedger

OpenLedger = Callable[[], Ledger]
DAY = 86_400_000
RETENTION = 100 * DAY
ONE, TWO = Source(1, 0), Source(1, 1)
NOW = 1_700_000_000_000


@pytest.fixture(params=["sqlite"])
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLedger:
    return {"sqlite": lambda: SqliteLedger(tmp_path / "ledger.db")}[request.param]


@pytest.fixture
def ledger(open_ledger: OpenLedger) -> Ledger:
    ledger = open_ledger()
    for source in (ONE, TWO):
        ledger.register_source(source, "pipeline", "raw", "topic-1")
    ledger.take_generation("pipeline")
    return ledger


def facts(
    *events: tuple[str, str] | tuple[str, str, int],
    start: int = 0,
    run: str = "r",
    stream_time: int = 0,
) -> pa.Table:
    """Return the facts of deliveries given as (event id, payload) or with an event time."""
    rows = []
    for number, (event_id, payload, *time) in enumerate(events):
        event_time = time[0] if time else NOW
        stream_time = max(stream_time, event_time)
        rows.append(
            {
                "offset": start + number,
                "append_time": NOW,
                "run": run,
                "class": "c",
                "event_id": event_id,
                "identity": identity_of(run, "c", event_id),
                "payload_hash": hashlib.sha256(payload.encode()).digest(),
                "event_time": event_time,
                "stream_time": stream_time,
                "reason": 0,
                "route": 0,
                "partition": 0,
            }
        )
    return pa.Table.from_pylist(rows, schema=FACTS_SCHEMA)


def claim(
    ledger: Ledger,
    source: Source,
    epoch: int,
    table: pa.Table,
    after: Mark | None = None,
    retention: int = RETENTION,
) -> Claimed | Blocked:
    return ledger.claim(
        Claim(
            source=source,
            epoch=epoch,
            after=ledger.mark(source) if after is None else after,
            facts=table,
            journal=b"journal",
            destinations=(Destination("t", "t-1", "folder", (0,)),),
            retention_ms=retention,
            rules=1,
            claimed_at=NOW,
        )
    )


def granted(found: Claimed | Blocked) -> Claimed:
    assert isinstance(found, Claimed)
    return found


def settle(
    ledger: Ledger, epoch: int, claimed: Claimed, state: BlockState = BlockState.SETTLED
) -> None:
    admitted = claimed.verdicts["verdict"].to_numpy() == VERDICT_CODES.index(Verdict.ADMITTED)
    offsets = np.arange(100, 100 + admitted.sum())
    settled = state is BlockState.SETTLED
    ledger.conclude(
        claimed.block,
        epoch,
        Outcome(state, offsets if settled else None, NOW if settled else None, NOW),
    )


def verdicts(claimed: Claimed) -> list[tuple[Verdict, Reason | None]]:
    return [
        (VERDICT_CODES[row["verdict"]], REASON_CODES[row["reason"]])
        for row in claimed.verdicts.to_pylist()
    ]


NEW = (Verdict.ADMITTED, None)
AGAIN = (Verdict.DUPLICATE, None)
CONTRADICTION = (Verdict.QUARANTINED, Reason.PAYLOAD_MISMATCH)


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


@pytest.mark.parametrize(
    ("age", "seen"), [(RETENTION - 1, True), (RETENTION, False), (RETENTION + 1, False)]
)
def test_the_window_ends_to_the_millisecond(ledger: Ledger, age: int, seen: bool) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    later = granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW + age), start=1)))

    assert verdicts(later) == [AGAIN if seen else NEW]


def test_an_identity_that_expires_within_a_block_ends_it_there(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    block = facts(("a", "x", NOW), ("b", "x", NOW + RETENTION), ("a", "x", NOW + RETENTION))

    assert claim(ledger, ONE, epoch, block) == Blocked(2, None)


def test_a_key_is_found_across_segments_in_both_directions(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    far = NOW + 60 * DAY
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x", far), start=1))))
    again = facts(("a", "x", far), ("b", "x", NOW), ("a", "y", NOW), start=2, stream_time=far)

    assert verdicts(granted(claim(ledger, ONE, epoch, again))) == [AGAIN, AGAIN, CONTRADICTION]


def test_segments_expire_whole_and_only_when_no_source_needs_them(ledger: Ledger) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("a", "x", NOW)))))
    settle(ledger, two, granted(claim(ledger, TWO, two, facts(("s", "x", NOW)))))
    future = NOW + 200 * DAY
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("b", "x", future), start=1))))

    assert ledger.expire_segments(RETENTION) == []
    settle(ledger, two, granted(claim(ledger, TWO, two, facts(("t", "x", future), start=1))))
    assert len(ledger.expire_segments(RETENTION)) == 1
    assert ledger.find(identity_of("r", "c", "a")) == []
    assert len(ledger.find(identity_of("r", "c", "b"))) == 1


def test_what_was_forgotten_is_too_old_for_a_source_that_has_read_nothing(ledger: Ledger) -> None:
    one = ledger.take_epoch(ONE, None)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("a", "x", NOW)))))
    settle(
        ledger, one, granted(claim(ledger, ONE, one, facts(("b", "x", NOW + 200 * DAY), start=1)))
    )
    assert ledger.mark(TWO).forgotten_before is None
    before = ledger.mark(TWO)
    assert len(ledger.expire_segments(RETENTION)) == 1

    forgotten = ledger.mark(TWO).forgotten_before
    assert forgotten is not None
    assert NOW < forgotten <= NOW + 200 * DAY
    with pytest.raises(MarkMoved):
        claim(ledger, TWO, ledger.take_epoch(TWO, None), facts(("a", "x", NOW)), after=before)


def test_the_longest_retention_ever_used_decides_what_is_forgotten(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    later = NOW + 60 * DAY
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x", later), start=1))))

    assert ledger.expire_segments(2 * DAY) == []
    assert verdicts(granted(claim(ledger, ONE, epoch, facts(("a", "x", later), start=2)))) == [
        AGAIN
    ]


def test_an_unresolved_identity_is_never_forgotten(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(
        ledger,
        epoch,
        granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))),
        BlockState.AMBIGUOUS,
    )
    later = NOW + 300 * DAY
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x", later), start=1))))

    assert ledger.expire_segments(RETENTION) == []
    follower = granted(claim(ledger, ONE, epoch, facts(("a", "x", later), start=2)))
    assert verdicts(follower) == [(Verdict.AMBIGUOUS, Reason.PUBLISH_UNKNOWN)]


@pytest.mark.parametrize("days", [1, 25, 50, 200, 400])
def test_a_changed_retention_finds_what_was_kept_under_the_old_one(
    ledger: Ledger, days: int
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    for step in range(1, 4):
        moment = NOW + step * DAY // 4
        found = claim(
            ledger, ONE, epoch, facts(("a", "x", moment), (f"n{step}", "x", moment), start=2 * step - 1),
            retention=days * DAY,
        )  # fmt: skip
        settle(ledger, epoch, granted(found))
        assert verdicts(granted(found)) == [AGAIN, NEW]


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
    ledger.close_run("r", b"artifact", ledger.newest_block("r"))
    late = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x"), start=1)))

    closed = (Verdict.QUARANTINED, Reason.RUN_CLOSED)
    assert verdicts(late) == [closed, closed]
    assert ledger.closure("r") == b"artifact"
    assert ledger.runs() == {"r": "CLOSED"}
    with pytest.raises(RunIsRed):
        ledger.close_run("r", b"other", ledger.newest_block("r"))


def test_a_claim_between_the_check_and_the_closing_stops_the_closing(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    seen = ledger.newest_block("r")
    claim(ledger, ONE, epoch, facts(("b", "x"), start=1))
    with pytest.raises(RunIsRed):
        ledger.close_run("r", b"artifact", seen)
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
            ledger.close_run("r", b"artifact", guess)


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
    assert all(run["balanced"] for run in books(ledger)["runs"])


def test_the_books_notice_a_decision_that_is_missing(ledger: Ledger, tmp_path: Path) -> None:
    import sqlite3

    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x")))))
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("c", "x"), start=2))))
    assert books(ledger)["runs"][0]["balanced"]
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("DELETE FROM block WHERE block_id = 1")
    db.close()

    assert not books(ledger)["runs"][0]["balanced"]


def test_the_store_itself_refuses_a_state_the_table_does_not_allow(
    ledger: Ledger, tmp_path: Path
) -> None:
    import sqlite3

    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    ledger.close()
    db = sqlite3.connect(tmp_path / "ledger.db")
    for statement in (
        "UPDATE block SET state = 'ABORTED'",
        "UPDATE block SET state = 'IN_FLIGHT'",
        "UPDATE source SET mark = -1",
        "UPDATE source SET stream_time = 1 WHERE stream_time IS NOT NULL",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)
    db.close()


def test_a_newer_store_is_refused(open_ledger: OpenLedger, ledger: Ledger, tmp_path: Path) -> None:
    import sqlite3

    ledger.close()
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigurationError, match="has version 99"):
        open_ledger().runs()


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
