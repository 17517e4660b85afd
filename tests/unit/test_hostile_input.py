"""Hostile input ends in its own reason, with its bytes kept; and nothing anybody can send raises."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import rfc8785

from admitone.boundary.read import ReadBlock, read_block
from admitone.boundary.rules import envelope_rules
from admitone.core.canonical import MAX_DEPTH
from admitone.core.decisions import REASON_CODES, Reason
from admitone.core.envelope import EnvelopeRules, timestamp_ms
from admitone.evidence import open_evidence_store
from admitone.evidence.originals import original
from admitone.ledger.model import Mark
from admitone.settings import load_settings
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA, RECORD_SCHEMA
from tests.support.hostile import (
    MOMENT,
    Headers,
    Hostile,
    every_separator,
    hostile_deliveries,
    line,
)
from tests.support.mutations import LONGEST, mutated
from tests.support.pipeline import Pipeline

FUZZED_INPUTS = 100_000
FUZZ_SEED = 20_260_105
FUZZED_AT_ONCE = 2_000

CONFIGURED_RUN = "configured"
NOW = timestamp_ms(MOMENT)
AT_THE_MOMENT = Mark(stream_time=NOW)

ABOUT_THE_TEXT = {
    Reason.NOT_JSON,
    Reason.INVALID_UNICODE,
    Reason.DUPLICATE_KEY,
    Reason.TOO_DEEP,
    Reason.NUMBER_NOT_REPRESENTABLE,
}
ABOUT_THE_EVENT = {
    Reason.NOT_AN_ENVELOPE,
    Reason.IDENTITY_INVALID,
    Reason.UNKNOWN_EVENT_TYPE,
    Reason.UNKNOWN_SCHEMA_VERSION,
    Reason.SCHEMA_VIOLATION,
    Reason.TIMESTAMP_INVALID,
    Reason.TOO_FAR_IN_FUTURE,
    Reason.TOO_OLD,
    Reason.PAYLOAD_TOO_LARGE,
    Reason.NO_PARTITION_FIELD,
}
TABLE = hostile_deliveries()


def rules_of(home: Path, **pipeline: Any) -> EnvelopeRules:
    return envelope_rules(load_settings(home, pipeline={"run_id": CONFIGURED_RUN, **pipeline}))


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> EnvelopeRules:
    return rules_of(tmp_path_factory.mktemp("home"))


def headers_column(deliveries: list[tuple[bytes | None, Headers]]) -> pa.Array:
    headers = [[{"key": key, "value": value} for key, value in names] for _, names in deliveries]
    return pa.array(headers, HEADERS_TYPE)


def records(deliveries: list[tuple[bytes | None, Headers]]) -> pa.Table:
    """Return deliveries as a source's records, all appended at the moment."""
    size = len(deliveries)
    return pa.table(
        [
            pa.nulls(size, pa.binary()),
            pa.array([raw for raw, _ in deliveries], pa.binary()),
            pa.array(["raw"] * size, pa.string()),
            pa.array([0] * size, pa.int32()),
            pa.array(range(size), pa.int64()),
            pa.array([NOW * 1_000] * size, pa.timestamp("us", tz="UTC")),
            pa.array([1] * size, pa.int32()),
            headers_column(deliveries),
        ],
        schema=RECORD_SCHEMA,
    )


def reasons(block: ReadBlock) -> list[Reason | None]:
    return [REASON_CODES[code] for code in block.facts["reason"].to_pylist()]


def plain_facts(*blocks: ReadBlock) -> list[dict[str, Any]]:
    return [row for block in blocks for row in block.facts.to_pylist()]


# The same questions, answered by other means


class Text(NamedTuple):
    """What a text says, and everything that is wrong with it."""

    faults: set[Reason]
    value: Any = None


class _Pairs(list[Any]):
    """The members of an object in which a key occurs twice."""


_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?)(\d+))?")
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:Z|([+-])(\d\d):?(\d\d)?)",
    re.ASCII,
)
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89abcdefABCDEF]")


def decimal_value(spelling: str) -> tuple[str, str, int] | None:
    """Return sign, digits and power of ten of a number; None where there is no such finite number."""
    match = _NUMBER.fullmatch(spelling)
    if match is None:
        return None
    sign, whole, fraction, exponent_sign, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return "", "", 0
    exponent = exponent.lstrip("0") or "0"
    if len(exponent) > 9:
        return None
    power = int(exponent_sign + exponent) - len(fraction) + len(digits) - len(significant)
    return sign, significant, power


def understand(raw: bytes | None) -> Text:
    """Read a text with nothing but the standard library."""
    if raw is None:
        return Text({Reason.NOT_JSON})
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Text({Reason.INVALID_UNICODE})
    faults: set[Reason] = set()

    def number(spelling: str) -> int | float:
        double = float(spelling)
        value = decimal_value(spelling)
        if value is None or value != decimal_value(repr(double)):
            faults.add(Reason.NUMBER_NOT_REPRESENTABLE)
        return double

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Pairs:
        if len({key for key, _ in pairs}) == len(pairs):
            return dict(pairs)
        faults.add(Reason.DUPLICATE_KEY)
        return _Pairs(pairs)

    def constant(name: str) -> Any:
        raise ValueError(name)

    try:
        value = json.loads(
            text,
            object_pairs_hook=members,
            parse_int=number,
            parse_float=number,
            parse_constant=constant,
        )
    except RecursionError:
        return Text({Reason.TOO_DEEP})
    except ValueError:
        # Nobody counts on brackets that are not closed: either name is right for a broken text full of them.
        deep = raw.count(b"[") + raw.count(b"{") > MAX_DEPTH
        return Text({Reason.NOT_JSON, Reason.TOO_DEEP} if deep else {Reason.NOT_JSON})
    if depth(value) > MAX_DEPTH:
        return Text({*faults, Reason.TOO_DEEP})
    if _ESCAPED_SURROGATE.search(raw) and any("\ud800" <= c <= "\udfff" for c in characters(value)):
        faults.add(Reason.INVALID_UNICODE)
    return Text(faults, value)


def characters(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "".join(value) + "".join(map(characters, value.values()))
    return "".join(map(characters, value)) if isinstance(value, list | tuple) else ""


def depth(value: Any) -> int:
    levels, level = 0, [value]
    while level := [found for found in level if isinstance(found, dict | list | tuple)]:
        # The pairs of an object with duplicate keys are tuples, and no level of their own.
        levels += not all(isinstance(found, tuple) for found in level)
        level = [
            member
            for found in level
            for member in (found.values() if isinstance(found, dict) else found)
        ]
    return levels


def expected_names(metadata: dict[str, Any], headers: Headers) -> tuple[str, str, str]:
    """Return run, class and event id of an admissible event."""
    last = dict(headers)
    run, event_class = (
        metadata[name] if name in metadata else last[name].decode() if name in last else default
        for name, default in (("runId", CONFIGURED_RUN), ("eventClass", metadata["eventType"]))
    )
    return run, event_class, metadata["eventId"]


def expected_time(timestamp: str) -> int:
    """Return the milliseconds of an admissible event's timestamp."""
    match = _TIMESTAMP.fullmatch(timestamp)
    assert match is not None
    *date, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups(default="0")
    assert int(hour) < 24
    assert int(zone_minute) < 60
    zone = timedelta(hours=int(zone_hour), minutes=int(zone_minute))
    local = datetime(*map(int, (*date, hour, minute, second)), tzinfo=UTC)
    since = local - datetime(1970, 1, 1, tzinfo=UTC) - (-zone if sign == "-" else zone)
    return (since.days * 86_400 + since.seconds) * 1_000 + int(f"{fraction}00"[:3])


def expected_identity(names: tuple[str, str, str]) -> bytes:
    digest = hashlib.sha256(b"admitone/identity/1\0")
    for name in names:
        digest.update(str(len(name)).encode() + b":" + name.encode())
    return digest.digest()


def assert_admissible(facts: dict[str, Any], text: Text, headers: Headers) -> None:
    names = expected_names(text.value["metadata"], headers)
    assert (facts["run"], facts["class"], facts["event_id"]) == names
    assert facts["identity"] == expected_identity(names)
    assert facts["payload_hash"] == hashlib.sha256(rfc8785.dumps(text.value["payload"])).digest()
    assert facts["event_time"] == expected_time(text.value["metadata"]["timestamp"])
    assert facts["event_time"] <= NOW + 3_600_000
    assert facts["partition"] is not None


def assert_refused(facts: dict[str, Any]) -> None:
    assert facts["run"]
    unknown = ("identity", "payload_hash", "event_time", "route", "partition")
    assert all(facts[name] is None for name in unknown)


# The table


def test_the_table_has_every_reason_that_bytes_alone_can_give() -> None:
    later = {
        Reason.RUN_CLOSED,
        Reason.CONTRACT_DRIFT,
        Reason.FOREIGN_KEY,
        Reason.PAYLOAD_MISMATCH,
        Reason.PUBLISH_FAILED,
        Reason.PUBLISH_UNKNOWN,
        Reason.IDENTITY_RETRACTED,
    }
    assert {case.reason for case in TABLE} == {None, *Reason} - later
    assert set(Reason) - later == ABOUT_THE_TEXT | ABOUT_THE_EVENT


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.reason}: {case.name}") for case in TABLE]
)
def test_hostile_input_ends_in_its_own_reason_at_once(rules: EnvelopeRules, case: Hostile) -> None:
    started = time.process_time()
    block = read_block(records([(case.raw, case.headers)]), AT_THE_MOMENT, rules)
    assert time.process_time() - started < 5

    (facts,) = block.facts.to_pylist()
    assert reasons(block) == [case.reason]
    assert block.records["value"].to_pylist() == [case.raw]
    assert facts["stream_time"] == NOW
    if case.reason is None:
        text = understand(case.raw)
        assert not text.faults
        assert_admissible(facts, text, case.headers)
    else:
        assert_refused(facts)


def test_neighbours_do_not_change_what_becomes_of_hostile_input(rules: EnvelopeRules) -> None:
    block = read_block(records([(case.raw, case.headers) for case in TABLE]), AT_THE_MOMENT, rules)
    backwards = read_block(
        records([(case.raw, case.headers) for case in reversed(TABLE)]), AT_THE_MOMENT, rules
    )

    assert reasons(block) == [case.reason for case in TABLE]
    assert reasons(backwards) == [case.reason for case in reversed(TABLE)]
    assert block.records["value"].to_pylist() == [case.raw for case in TABLE]


def test_names_full_of_separators_stay_apart(rules: EnvelopeRules) -> None:
    admissible = [case for case in TABLE if case.reason is None]
    block = read_block(
        records([(case.raw, case.headers) for case in admissible]), AT_THE_MOMENT, rules
    )

    assert len(set(block.facts["identity"].to_pylist())) == len(admissible)


def test_hostile_deliveries_are_decided_and_their_bytes_kept(tmp_path: Path) -> None:
    pipeline = Pipeline(
        tmp_path,
        transport={"raw_partitions": 1},
        pipeline={"run_id": CONFIGURED_RUN, "max_block": 40},
    )
    pipeline.ingest(line())
    first = len(pipeline.records(0))
    lines = [case for case in TABLE if fits_a_line(case)]
    others = [case for case in TABLE if not fits_a_line(case)]
    pipeline.ingest(*(case.raw for case in lines))
    append(pipeline, others)
    pipeline.run()

    rows = {row["source"]["offset"]: row for row in pipeline.decisions()}
    cases = dict(enumerate([*lines, *others], first))
    assert rows.keys() == {0, *cases}
    for offset, case in cases.items():
        verdict = "ADMITTED" if case.reason is None else "QUARANTINED"
        assert (rows[offset]["verdict"], rows[offset]["reason"]) == (verdict, case.reason), (
            case.name
        )
    assert ("ADMITTED", None) in pipeline.verdicts(every_separator())
    assert_originals(pipeline, rows, cases)
    assert pipeline.problems() == []

    assert pipeline.ledger.expire_journal(2) > 0
    assert all(
        pipeline.ledger.journal(block.block_id) is None for block in pipeline.ledger.blocks()
    )
    assert_originals(pipeline, rows, cases)


def fits_a_line(case: Hostile) -> bool:
    return not case.headers and bool(case.raw and case.raw.strip()) and b"\n" not in case.raw


def append(pipeline: Pipeline, cases: list[Hostile]) -> None:
    """Append deliveries to the raw log as any producer may, line ends and headers included."""
    size = len(cases)
    table = pa.table(
        [
            pa.array([0] * size, pa.int32()),
            pa.nulls(size, pa.binary()),
            pa.array([case.raw for case in cases], pa.binary()),
            headers_column([(case.raw, case.headers) for case in cases]),
        ],
        schema=OUTGOING_SCHEMA,
    )
    epoch = pipeline.transport.init_producer("hostile")
    pipeline.transport.append("hostile", epoch, {pipeline.topic.name: table})


def assert_originals(
    pipeline: Pipeline, rows: dict[int, dict[str, Any]], cases: dict[int, Hostile]
) -> None:
    store = open_evidence_store(pipeline.settings)
    for offset, case in cases.items():
        block, ordinal = map(int, rows[offset]["id"].split("-"))
        assert original(pipeline.ledger, store, block, ordinal) == case.raw, case.name


# Random input


def test_no_random_input_raises_and_every_answer_is_right(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, max_event_bytes=LONGEST)
    deliveries = mutated(FUZZ_SEED, FUZZED_INPUTS)
    mark, seen = Mark(), Counter[Reason | None]()
    while chunk := list(itertools.islice(deliveries, FUZZED_AT_ONCE)):
        block = read_block(records(chunk), mark, rules)
        assert block.records["value"].to_pylist() == [raw for raw, _ in chunk]
        facts = plain_facts(block)
        assert facts == read_in_two(chunk, mark, rules)
        for (raw, headers), row, reason in zip(chunk, facts, reasons(block), strict=True):
            seen[reason] += 1
            try:
                assert_right(raw, headers, row, reason)
            except AssertionError as wrong:
                wrong.add_note(f"{raw!r} with headers {headers!r}")
                raise
        mark = Mark(len(chunk), facts[-1]["stream_time"])

    assert seen.total() == FUZZED_INPUTS
    assert seen[None] > FUZZED_INPUTS // 10
    assert all(seen[reason] > 100 for reason in ABOUT_THE_TEXT | ABOUT_THE_EVENT), seen


def read_in_two(
    chunk: list[tuple[bytes | None, Headers]], mark: Mark, rules: EnvelopeRules
) -> list[dict[str, Any]]:
    """Read the deliveries again, as two blocks: what they are does not depend on where a block ends."""
    table, middle = records(chunk), len(chunk) // 3
    one = read_block(table.slice(0, middle), mark, rules)
    so_far = one.facts["stream_time"][-1].as_py()
    other = read_block(table.slice(middle), Mark(middle - 1, so_far), rules)
    return plain_facts(one, other)


def assert_right(
    raw: bytes | None, headers: Headers, facts: dict[str, Any], reason: Reason | None
) -> None:
    if raw is not None and len(raw) > LONGEST:
        assert reason is Reason.PAYLOAD_TOO_LARGE
        return
    text = understand(raw)
    if text.faults:
        assert reason in text.faults
    else:
        assert reason not in ABOUT_THE_TEXT
    if reason is None:
        assert len(facts["identity"]) == len(facts["payload_hash"]) == 32
        assert_admissible(facts, text, headers)
    else:
        assert_refused(facts)
