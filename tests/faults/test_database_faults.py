"""The database dies, or its connections do, while the boundary works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.crowd import crowd
from tests.faults.database_harness import cuts, kills, storm
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy


def test_a_killed_database_loses_and_doubles_nothing(
    tmp_path: Path, own_server: PostgresServer
) -> None:
    struck, problems = storm(
        tmp_path / "home", 5, own_server.new_schema(), kills(own_server), wanted=4, pause_s=0.8
    )
    assert struck == 4
    assert problems == []


def test_cut_connections_lose_and_double_nothing(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    proxy = Proxy(postgres_server.port)
    url = proxy.url(postgres_server.new_schema())
    struck, problems = storm(tmp_path / "home", 6, url, cuts(proxy), wanted=10, pause_s=0.2)
    proxy.close()
    assert struck >= 10
    assert problems == []


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_two_pipelines_with_the_same_events_admit_each_once(
    store: str, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """`make faults` does the same with half a million events."""
    url = postgres_server.new_schema() if store == "postgres" else "sqlite:data/ledger.db"
    run, problems = crowd(tmp_path, url, events=20_000, max_block=1_000)
    assert problems == []
    assert (run["admitted"], run["duplicates"], run["balanced"]) == (20_000, 20_000, True)
