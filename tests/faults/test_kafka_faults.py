"""The boundary on a real Kafka: every crash point each way, and the broker struck while it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from admitone.infra.crash_points import (
    BOUNDARY_POINTS,
    KAFKA_POINTS,
    LEDGER_POINTS,
    RECONCILE_POINTS,
    RESOLUTION_POINTS,
)
from tests.faults.harness import Case, Fault
from tests.faults.kafka_harness import (
    HELD_BACK,
    cuts,
    kafka_storm,
    kills,
    late_requests,
    pauses,
    run_ambiguous_case,
    run_hidden_case,
    run_kafka_case,
)
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_proxy import Api, KafkaProxy
from tests.servers.postgres import PostgresServer

# One after the other in the same home; recovery's own points come after something to recover from.
CHAINS = {
    "claim": (
        "boundary.owned", "boundary.fenced", "boundary.read", "boundary.claiming",
        "boundary.claimed", "recovery.fenced", "recovery.looked", "boundary.publishing",
        "recovery.resolved",
    ),
    "publish": (
        "kafka.delivered", "boundary.published", "boundary.settling", "boundary.settled",
        "ledger.claim_written", "ledger.outcome_written", "evidence.written", "evidence.recorded",
    ),
}  # fmt: skip


@pytest.fixture
def proxy(kafka_broker: KafkaBroker) -> Iterator[KafkaProxy]:
    proxy = KafkaProxy(kafka_broker)
    yield proxy
    proxy.close()


def test_no_crash_point_is_left_out() -> None:
    assert sorted(point for chain in CHAINS.values() for point in chain) == sorted(
        BOUNDARY_POINTS + KAFKA_POINTS + LEDGER_POINTS
    )


@pytest.mark.parametrize(
    ("chain", "action", "store"),
    [
        ("claim", "kill", "sqlite"),
        ("claim", "stop", "sqlite"),
        ("publish", "kill", "postgres"),
        ("publish", "stop", "sqlite"),
    ],
)
def test_a_fault_at_any_point_changes_nothing_a_plain_consumer_sees(
    chain: str,
    action: str,
    store: str,
    kafka_broker: KafkaBroker,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> None:
    faults = tuple(
        Fault(point, 1 if point.startswith(("evidence", "recovery")) else 2, action)
        for point in CHAINS[chain]
        if action == "kill" or point not in LEDGER_POINTS
    )
    case = Case(7, faults, (20,) * (len(faults) + 1))
    url = postgres_server.new_schema() if store == "postgres" else "sqlite:data/ledger.db"
    struck, problems = run_kafka_case(case, tmp_path / "home", kafka_broker.bootstrap, url)

    assert struck == len(faults)
    assert problems == []


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_what_nobody_got_an_answer_to_is_published_late_once(
    action: str, kafka_broker: KafkaBroker, proxy: KafkaProxy, tmp_path: Path
) -> None:
    *before, resolved = RECONCILE_POINTS
    inside = RESOLUTION_POINTS if action == "kill" else ()
    faults = tuple(Fault(point, 1, action) for point in (*before, *inside, resolved))
    case = Case(3, faults, (50,) * (len(faults) + 1))
    struck, problems = run_ambiguous_case(
        tmp_path / "home", kafka_broker, proxy, case, written=False
    )

    assert struck == len(faults)
    assert problems == []


def test_what_was_committed_without_an_answer_is_found(
    kafka_broker: KafkaBroker, proxy: KafkaProxy, tmp_path: Path
) -> None:
    faults = (Fault("reconcile.fenced", 1, "kill"), Fault("reconcile.published", 1, "kill"))
    struck, problems = run_ambiguous_case(
        tmp_path / "home", kafka_broker, proxy, Case(3, faults, (50,) * 3), written=True
    )

    assert struck == 1, "what is on the log must not be published again"
    assert problems == []


@pytest.mark.parametrize(("commit", "patient"), [(True, True), (False, False)])
def test_another_producers_open_transaction_across_recovery_hides_nothing_for_good(
    commit: bool, patient: bool, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    assert run_hidden_case(home, kafka_broker, 13, commit=commit, patient=patient) == []


def test_a_broker_that_is_killed_or_paused_loses_and_doubles_nothing(
    own_broker: KafkaBroker, tmp_path: Path
) -> None:
    for number, (strike, wanted) in enumerate(((kills(own_broker), 2), (pauses(own_broker), 1))):
        struck, problems = kafka_storm(
            tmp_path / f"home-{number}", 4, own_broker, own_broker.bootstrap, strike, wanted, 1.0
        )
        assert struck == wanted
        assert problems == []


def test_cut_connections_to_the_broker_lose_and_double_nothing(
    kafka_broker: KafkaBroker, proxy: KafkaProxy, tmp_path: Path
) -> None:
    struck, problems = kafka_storm(
        tmp_path / "home", 4, kafka_broker, kafka_broker.proxied, cuts(proxy), 5, pause_s=0.3
    )
    assert struck >= 3
    assert problems == []


@pytest.mark.parametrize("api", HELD_BACK, ids=lambda api: api.name.lower())
def test_requests_that_the_broker_gets_late_lose_and_double_nothing(
    api: Api, kafka_broker: KafkaBroker, proxy: KafkaProxy, tmp_path: Path
) -> None:
    struck, problems = kafka_storm(
        tmp_path / "home", 11, kafka_broker, kafka_broker.proxied, late_requests(proxy, api), 4, 0.1
    )
    assert struck
    assert problems == []
