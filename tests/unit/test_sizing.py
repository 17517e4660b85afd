"""The sizing model: arithmetic by hand, constants from the measurement, and a command that says both."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admitone.core import sizing
from admitone.core.segment_times import is_droppable, segment_for
from admitone.core.sizing import (
    COLUMNS,
    COSTS,
    DAY_MS,
    KEYS,
    MEASURED,
    PROFILES,
    Load,
    model_errors,
    recommended_trigger_ms,
    size_of,
)
from tests.support.command_line import Cli, cli

__all__ = ["cli"]

FIGURES = json.loads((Path(__file__).parents[2] / "benchmarks/bytes_per_key.json").read_text())


@pytest.mark.parametrize(
    ("profile", "keys", "in_segment", "at_peak"),
    [
        ("repeating", 432_000_000, 216_000_000, 648_000_000),
        ("unique", 8_640_000_000, 4_320_000_000, 12_960_000_000),
    ],
)
def test_the_two_documented_profiles(
    profile: str, keys: int, in_segment: int, at_peak: int
) -> None:
    found = size_of(PROFILES[profile])

    assert found.events.per_day == 86_400_000
    assert found.events.in_window == 8_640_000_000
    assert found.keys.in_window == keys
    assert found.keys.in_segment == in_segment
    assert found.keys.at_peak == at_peak
    assert found.segments.interval_ms == 4_320_000_000
    assert found.segments.live_at_peak == 3
    assert found.segments.span_ms == 150 * DAY_MS
    assert found.ledger.keys == pytest.approx(at_peak * COSTS["postgresql"].key, abs=1)


@pytest.mark.parametrize(
    ("standbys", "readers", "megabytes"), [(0, 0, 3), (0, 1, 4), (2, 1, 6), (2, 3, 8)]
)
def test_a_replication_of_three_has_two_followers(
    standbys: int, readers: int, megabytes: int
) -> None:
    """1,000 events of 1,000 bytes: producer to leader and two fetches, then standbys and readers."""
    load = Load(
        key_bytes=100, value_bytes=900, replication=3, standbys=standbys, readers=readers
    )  # fmt: skip
    found = size_of(load)

    assert found.network.ingest == 1_000_000
    assert found.network.raw == megabytes * 1_000_000
    assert found.broker.raw == 3 * 7 * 86_400 * 1_000_000


def test_only_stored_keys_are_kept_and_logged() -> None:
    half, none = (size_of(Load(duplicates=share, standbys=1)) for share in (0.5, 0.0))
    cost = COSTS["sqlite"]

    assert half.keys.at_peak * 2 == none.keys.at_peak
    assert half.ledger.keys * 2 == pytest.approx(none.ledger.keys, abs=2)
    assert none.network.ledger_to_standbys - half.network.ledger_to_standbys == pytest.approx(
        500 * cost.key, abs=2
    )
    # Every delivery is decided, so duplicates cost columns, originals and raw log as well.
    assert half.ledger.columns == none.ledger.columns
    assert half.ledger.journal == none.ledger.journal
    assert half.broker.raw == none.broker.raw


def test_the_ledger_by_hand() -> None:
    load = Load(
        rate=2_000, retention_ms=10 * DAY_MS, duplicates=0.25, key_bytes=40, value_bytes=500,
        standbys=2, partitions=8, trigger_ms=4_000,
    )  # fmt: skip
    found, cost = size_of(load), COSTS["sqlite"]

    deliveries = 2_000 * 86_400  # a day
    columns = 2 * 86_400 * cost.column_block + deliveries * (
        cost.column_delivery + 40 * cost.column_id_byte
    )
    keys = 1_500 * 86_400 * 15 * cost.key  # of 10 days and one segment of 5
    journal = deliveries * 500 * sizing.JOURNAL_SHARE
    assert found.trigger.block == 1_000
    assert found.ledger.columns_per_day == pytest.approx(columns, abs=1)
    assert found.ledger.total == pytest.approx(keys + 10 * columns + journal, abs=2)
    assert found.ledger.with_standbys == pytest.approx(3 * found.ledger.total, abs=3)
    assert found.evidence.receipts == pytest.approx(1_500 * 864_000 * sizing.RECEIPT, abs=1)
    assert found.evidence.archive == pytest.approx(
        1_500 * 864_000 * 500 * sizing.ARCHIVE_SHARE, abs=1
    )
    assert found.memory.pipeline == pytest.approx(
        1e6 * (sizing.MEMORY_BASE_MB + 8 * sizing.MEMORY_MB_PER_1000), abs=1
    )
    assert found.memory.reads_per_second == 6_000


@given(st.integers(1, 400_000), st.integers(0, 2_000_000))
def test_no_moment_has_more_live_segments_or_a_longer_span_than_the_model_says(
    retention_ms: int, moment: int
) -> None:
    """Counted with the rules that drop segments, on a stream with an event in every segment."""
    found = size_of(Load(retention_ms=retention_ms)).segments
    live = [
        start
        for start in range(0, moment + 1, found.interval_ms)
        if not is_droppable(start + found.interval_ms, moment, retention_ms)
    ]
    assert segment_for(moment, retention_ms).length == found.interval_ms
    assert len(live) <= found.live_at_peak
    assert moment + 1 - min(live) <= found.span_ms


@pytest.mark.parametrize(
    ("retention_ms", "interval_ms", "live"),
    [(100 * DAY_MS, 50 * DAY_MS, 3), (120_000, 60_000, 3), (60_000, 60_000, 2), (1_000, 60_000, 2),
     (1, 60_000, 1)],
)  # fmt: skip
def test_segments_at_peak_are_reached(retention_ms: int, interval_ms: int, live: int) -> None:
    found = size_of(Load(retention_ms=retention_ms)).segments
    # The moment before the segment that begins at 0 is dropped.
    moment = interval_ms + retention_ms - 2
    assert not is_droppable(interval_ms, moment, retention_ms)
    assert is_droppable(interval_ms, moment + 1, retention_ms)
    assert moment // interval_ms + 1 == live == found.live_at_peak
    assert found.interval_ms == interval_ms


def test_the_recommended_trigger_makes_blocks_worth_their_fixed_part() -> None:
    slow, usual, fast = (recommended_trigger_ms(Load(rate=rate)) for rate in (1, 1_000, 1_000_000))
    assert slow == 60_000
    assert fast == 500
    assert fast < usual < slow
    cost = COSTS["sqlite"]
    block = 1_000 * usual / 1_000 / 4
    assert cost.column_block <= 0.1 * block * (cost.column_delivery + 36 * cost.column_id_byte)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rate": 0}, "rate: expected 0.001"),
        ({"rate": -5}, "rate"),
        ({"rate": math.nan}, "got nan"),
        ({"rate": math.inf}, "got inf"),
        ({"retention_ms": 0}, "retention_ms: expected 1 to"),
        ({"duplicates": 1}, "duplicates"),
        ({"duplicates": -0.1}, "duplicates"),
        ({"key_bytes": 0}, "key_bytes"),
        ({"value_bytes": 10**12}, "value_bytes"),
        ({"replication": 0}, "replication: expected 1 to 100, got 0"),
        ({"standbys": -1}, "standbys"),
        ({"readers": 10**6}, "readers"),
        ({"trigger_ms": 0}, "trigger_ms"),
        ({"store": "mysql"}, "store: expected sqlite or postgresql, got 'mysql'"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(Load(), **changes)


def test_the_constants_are_those_of_the_measurement() -> None:
    """Within one in a thousand: the package rounds what the benchmark wrote."""
    for store, cost in COSTS.items():
        assert cost._asdict() == pytest.approx(FIGURES["model"][store], rel=0.001)
    traffic, memory = FIGURES["model"]["traffic"], FIGURES["model"]["memory"]
    assert pytest.approx(traffic["receipt"], rel=0.001) == sizing.RECEIPT
    assert pytest.approx(traffic["archive_share"], rel=0.001) == sizing.ARCHIVE_SHARE
    assert pytest.approx(traffic["journal_share"], rel=0.001) == sizing.JOURNAL_SHARE
    assert pytest.approx(traffic["admitted_record"], rel=0.001) == sizing.ADMITTED_RECORD
    assert pytest.approx(memory["base_mb"], rel=0.001) == sizing.MEMORY_BASE_MB
    assert pytest.approx(memory["mb_per_1000_deliveries"], rel=0.001) == sizing.MEMORY_MB_PER_1000


def test_the_model_is_held_against_every_measurement() -> None:
    measured = [
        (KEYS, row["store"], row["keys"] // row["block"], row["block"], 0, row["bytes"])
        for row in FIGURES["keys"]
    ] + [
        (COLUMNS, row["store"], row["blocks"], row["block"], row["key_bytes"], row["bytes"])
        for row in FIGURES["columns"]
    ]
    assert sorted(MEASURED) == sorted(measured)
    errors = model_errors()
    assert {(each.what, each.store) for each in errors} == {
        (what, store) for what in (KEYS, COLUMNS) for store in COSTS
    }
    for each in errors:
        limit = 0.03 if each.what == KEYS else 0.07
        assert -limit <= each.lowest <= 0 <= each.highest <= limit


def test_the_command_prints_every_group_and_the_models_error(cli: Cli, tmp_path: Path) -> None:
    done = cli("size", "--profile", "repeating", "--home", str(tmp_path))
    assert done.code == 0
    for said in ("events", "keys", "segments", "ledger", "evidence", "broker disk", "network",
                 "memory", "trigger", "model error", "432,000,000", "8,640,000,000", "150d",
                 "x (3 + 2 + 1)", "1.8 MB/s", "python -m benchmarks.bytes_per_key"):  # fmt: skip
        assert said in done.out


def test_the_command_prints_one_document(cli: Cli, tmp_path: Path) -> None:
    document = cli("size", "--profile", "unique", "--json", "--home", str(tmp_path)).document
    assert document["keys"]["in_window"] == 8_640_000_000
    assert document["load"]["duplicates"] == 0
    assert {"events", "keys", "segments", "ledger", "evidence", "broker", "network", "memory",
            "trigger", "model"} <= set(document)  # fmt: skip
    assert document["model"]["errors"] == [asdict(each) for each in model_errors()]


def test_what_is_not_given_comes_from_the_configuration(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(
        '[dedup]\nretention = "10d"\n[ledger]\nurl = "postgresql://db/x"\n[evidence]\narchive = false\n'
        '[transport]\nraw_replication = 3\nraw_partitions = 8\nraw_retention = "2d"\n'
    )
    load = cli("size", "--rate", "50", "--json", "--home", str(tmp_path)).document["load"]
    expected = {"rate": 50, "retention_ms": 10 * DAY_MS, "store": "postgresql", "archive_share": 0,
                "replication": 3, "partitions": 8, "log_retention_ms": 2 * DAY_MS}  # fmt: skip
    assert {name: load[name] for name in expected} == expected
    given = cli("size", "--retention", "1d", "--store", "sqlite", "--json", "--home", str(tmp_path))
    assert given.document["load"]["retention_ms"] == DAY_MS
    assert given.document["load"]["store"] == "sqlite"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "-1"), "rate: expected"),
        (("--rate", "nan"), "rate: expected"),
        (("--rate", "many"), "--rate"),
        (("--duplicates", "1.5"), "duplicates: expected"),
        (("--retention", "soon"), "--retention: expected a number and one of"),
        (("--profile", "huge"), "profile: expected repeating or unique, got 'huge'"),
        (("--store", "mysql"), "store: expected sqlite or postgresql"),
        (("--standby", "2"), "--standby"),
    ],
)
def test_input_that_makes_no_sense_is_a_usage_error(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = cli("size", *arguments, "--home", str(tmp_path))
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert "Traceback" not in done.err
