"""Every crash point of the protocol, struck while a dedup pipeline runs; compared with what its records should be."""

from __future__ import annotations

import shutil
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from admitone.boundary import open_dedup
from admitone.infra.crash_points import BOUNDARY_POINTS, LEDGER_POINTS, arm
from admitone.ledger.decision_rows import decisions
from admitone.ledger.model import Filter
from admitone.settings import Settings, load_settings
from admitone.transport.topic_contract import dedup_source
from tests.faults.harness import Case, Fault, finish, processes, strike
from tests.servers.postgres import PostgresServer
from tests.support.deduplicated import DedupPipeline
from tests.support.orders import DEDUP, Expected, make_orders
from tests.support.store_check import check_evidence, check_log

NOW = 1_770_000_000_000


def settings_for(home: Path, max_block: int = 50) -> Settings:
    return load_settings(
        home,
        transport={"raw_partitions": 2},
        pipeline={"max_block": max_block},
        dedup={**DEDUP, "cache": 64},
    )


def attempt(home: Path, max_block: int, fault: str | None) -> None:
    arm(fault)
    settings = settings_for(home, max_block)
    pipeline = open_dedup(settings)
    finish(settings, pipeline, dedup_source(settings, pipeline.transport))


def begin(home: Path, max_block: int, fault: str | None) -> BaseProcess:
    process = processes.Process(target=attempt, args=(home, max_block, fault))
    process.start()
    return process


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    home = tmp_path_factory.mktemp("dedup") / "template"
    home.mkdir()
    pipeline = DedupPipeline(home, dedup=DEDUP)
    partitions = make_orders(240, 7, NOW)
    for number, orders in enumerate(partitions):
        pipeline.append(*(order.value for order in orders), partition=number)
    return home, Expected.of(partitions)


def verify(home: Path, expected: Expected) -> list[str]:
    settings = settings_for(home)
    pipeline = DedupPipeline(home, dedup=DEDUP)
    ledger, transport = pipeline.ledger, pipeline.transport
    problems = [
        *expected.problems(pipeline.values(), decisions(ledger, Filter())),
        *check_log(ledger, transport, settings),
        *check_evidence(ledger, settings),
    ]
    ledger.close()
    transport.close()
    return problems


@pytest.mark.parametrize(
    ("point", "action", "store"),
    [
        *((point, "kill", "sqlite") for point in BOUNDARY_POINTS + LEDGER_POINTS),
        ("boundary.publishing", "stop", "sqlite"),
        ("boundary.claimed", "stop", "postgres"),
        ("boundary.published", "stop", "postgres"),
        ("boundary.settling", "kill", "postgres"),
    ],
)
def test_a_fault_at_any_point_writes_no_record_twice_and_loses_none(
    point: str,
    action: str,
    store: str,
    prepared: tuple[Path, Expected],
    tmp_path: Path,
    postgres_server: PostgresServer,
) -> None:
    template, expected = prepared
    home = tmp_path / "home"
    shutil.copytree(template, home)
    if store == "postgres":
        (home / "admitone.toml").write_text(f'[ledger]\nurl = "{postgres_server.new_schema()}"\n')
    faults = [Fault(point, 1 if point.startswith(("evidence", "recovery")) else 2, action)]
    if point.startswith("recovery.") and point != "recovery.fenced":
        faults.insert(0, Fault("boundary.published", 2, "kill"))
    case = Case(0, tuple(faults), (20,) * (len(faults) + 1))

    struck, problems = strike(case, home, lambda: verify(home, expected), begin)

    assert struck == len(faults)
    assert problems == []
