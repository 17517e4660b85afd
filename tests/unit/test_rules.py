"""The tables the boundary decides by, segments, durations and settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admitone.boundary.rules import envelope_rules
from admitone.core.decisions import (
    ADMISSION_OF_BLOCK,
    BLOCK_TRANSITIONS,
    CODE_OF_REASON,
    JUDGEMENTS,
    REASON_CODES,
    VERDICT_CODES,
    AdmissionState,
    BlockState,
    Meaning,
    Reason,
    Verdict,
    meaning_of,
)
from admitone.core.durations import format_duration, parse_duration_ms
from admitone.core.errors import ConfigurationError
from admitone.core.merkle import MerkleTree, leaf_hash
from admitone.core.segment_times import (
    interval_of,
    is_droppable,
    oldest_live,
    segment_name,
    segment_of,
)
from admitone.ops.init import Profile, template
from admitone.settings import FILE_NAME, load_settings

DAY = 86_400_000


@pytest.mark.parametrize(
    ("state", "expired", "same", "meaning"),
    [
        (AdmissionState.NONE, False, False, Meaning.NEW),
        (AdmissionState.PUBLISH_IN_FLIGHT, True, True, Meaning.WAIT),
        (AdmissionState.PUBLISH_AMBIGUOUS, True, False, Meaning.FOLLOW),
        (AdmissionState.RETRACTED, True, True, Meaning.RETRACTED),
        (AdmissionState.ADMITTED, True, False, Meaning.NEW),
        (AdmissionState.ADMITTED, False, True, Meaning.DUPLICATE),
        (AdmissionState.ADMITTED, False, False, Meaning.CONTRADICTION),
    ],
)
def test_what_an_existing_identity_means(
    state: AdmissionState, expired: bool, same: bool, meaning: Meaning
) -> None:
    assert meaning_of(state, expired=expired, same_hash=same) is meaning


def test_every_state_has_a_meaning_and_every_meaning_a_judgement() -> None:
    for state in AdmissionState:
        for expired in (False, True):
            for same in (False, True):
                assert meaning_of(state, expired=expired, same_hash=same) in JUDGEMENTS
    assert set(ADMISSION_OF_BLOCK) == set(BlockState)


def test_nothing_follows_a_final_state() -> None:
    for final in (BlockState.SETTLED, BlockState.ABORTED, BlockState.RETRACTED):
        assert not any((final, after) in BLOCK_TRANSITIONS for after in BlockState)
    assert len(BLOCK_TRANSITIONS) == 5


def test_the_codes_in_stored_columns_never_change() -> None:
    assert [str(verdict) for verdict in VERDICT_CODES] == [
        "ADMITTED", "DUPLICATE", "REPLAYED", "QUARANTINED", "AMBIGUOUS",
    ]  # fmt: skip
    assert REASON_CODES[0] is None
    assert CODE_OF_REASON[Reason.NOT_JSON] == 1
    assert CODE_OF_REASON[Reason.PAYLOAD_MISMATCH] == 19
    assert CODE_OF_REASON[Reason.IDENTITY_RETRACTED] == len(Reason) == 22
    assert len(Verdict) == 5


def test_segments_of_a_hundred_days_are_fifty_days_long() -> None:
    interval = interval_of(100 * DAY)
    assert interval == 4_320_000_000
    assert (
        segment_name("admission", segment_of(interval, interval) * interval)
        == "admission.4320000000"
    )
    assert segment_name("admission", segment_of(interval - 1, interval) * interval) == "admission.0"
    assert segment_of(-1, interval) == -1
    assert interval_of(1_000) == 60_000


@given(st.integers(-(10**12), 10**13), st.integers(1, 10**11), st.integers(0, 10**13))
def test_a_droppable_segment_holds_only_expired_keys(
    time: int, retention: int, slowest: int
) -> None:
    interval = interval_of(retention)
    segment = segment_of(time, interval)
    if is_droppable((segment + 1) * interval, slowest, retention):
        assert time < oldest_live(slowest, retention)


@given(st.integers(1, 10**12))
def test_durations_read_back(ms: int) -> None:
    assert parse_duration_ms(format_duration(ms)) == ms


@pytest.mark.parametrize("text", ["", "10", "m", "1.5h", "-1s", "1 year"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10m"):
        parse_duration_ms(text)


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf_hash(leaf))
    return tree.root()


def test_merkle_roots_depend_on_every_leaf_and_their_order() -> None:
    leaves = [b"a", b"b", b"c"]
    root = merkle_root(leaves)
    assert root == merkle_root(iter(leaves))
    assert (
        len(
            {
                root,
                merkle_root(leaves[::-1]),
                merkle_root([*leaves, b"c"]),
                merkle_root([]),
                merkle_root([b"abc"]),
            }
        )
        == 5
    )


def test_the_commented_configuration_holds_the_defaults(tmp_path: Path) -> None:
    defaults = load_settings(tmp_path)
    (tmp_path / "admitone.toml").write_text(template(Profile.EMBEDDED))
    assert load_settings(tmp_path) == defaults


def test_the_production_configuration_has_no_secrets_and_takes_them_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admitone.toml").write_text(template(Profile.PRODUCTION))
    monkeypatch.setenv("ADMITONE_TRANSPORT__KAFKA__SASL_PASSWORD", "opensesame")
    settings = load_settings(tmp_path)
    kafka = settings.transport.kafka

    assert (settings.transport.kind, kafka.security_protocol) == ("kafka", "SASL_SSL")
    assert kafka.sasl_password.get_secret_value() == "opensesame"
    assert "opensesame" not in repr(settings)
    assert settings.ledger.url.startswith("postgresql://admitone@")
    assert {entry.family for entry in settings.topics} == {
        "traffic",
        "context",
        "control",
        "decision",
    }


def test_the_production_configuration_has_a_schema_for_every_event_type_it_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "admitone.toml").write_text(template(Profile.PRODUCTION))
    routes = envelope_rules(load_settings(tmp_path)).route_of_type

    assert {name: routes[name] for name in ("purchase", "merchant_context", "run_control")} == {
        "purchase": 0,
        "merchant_context": 1,
        "run_control": 2,
    }
    assert (routes["decision"], routes["action"]) == (3, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pipelin]\n", "unknown key pipelin, did you mean 'pipeline'"),
        ("[topk]\nwidht = 5\n", "unknown key topk.widht, did you mean 'width'"),
        ('[[topics]]\nfamly = "x"\n', "did you mean 'family'"),
        ("[topk]\nwidth = 1\n", "topk.width"),
        ("[topk]\nlateness = 'soon'\n", "such as 10m"),
        ("[topk]\nwindows = ['1h']\n", "must include 1m"),
        ("[spark.options]\n'spark.speculation' = 'true'\n", "two copies of a task"),
        ("not toml", "is not valid TOML"),
        (
            '[[topics]]\nfamily="a"\ntopic="a"\nevent_types=["x"]\n[[topics]]\nfamily="b"\ntopic="b"\nevent_types=["x"]\n',
            "an event type has one destination",
        ),
        *(
            (
                '[[topics]]\nfamily="a"\ntopic="a"\nevent_types=["x"]\nrecord_key="business_key"\n'
                f'cleanup_policy="{policy}"\n',
                'expected cleanup_policy = "delete" or record_key = "stream_metadata"',
            )
            for policy in ("compact", "compact,delete")
        ),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_refused_with_the_remedy(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "admitone.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=said.replace("(", ".")):
        load_settings(tmp_path)


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admitone.toml").write_text('[pipeline]\nrun_id = "file"\nmax_block = 5\n')
    monkeypatch.setenv("ADMITONE_PIPELINE__RUN_ID", "environment")
    settings = load_settings(tmp_path)
    assert (settings.pipeline.run_id, settings.pipeline.max_block) == ("environment", 5)


@pytest.mark.parametrize("section", ["ledger", "results", "history"])
@pytest.mark.parametrize(
    "url", ["postgresql://me:opensesame@db/x", "postgresql://me@db/x?password=opensesame"]
)
def test_a_password_in_a_url_of_the_file_is_refused_without_being_shown(
    section: str, url: str, tmp_path: Path
) -> None:
    (tmp_path / FILE_NAME).write_text(f'[{section}]\nurl = "{url}"\n')
    with pytest.raises(ConfigurationError, match=f"ADMITONE_{section.upper()}__URL") as refusal:
        load_settings(tmp_path)
    assert "opensesame" not in str(refusal.value)
