"""Every contract holds on each store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from admitone.ledger.port import Ledger
from admitone.ledger.stored_ledger import StoredLedger
from admitone.simulation.evidence import SimulatedEvidence, url_of
from admitone.simulation.ledger import SimulatedStore
from tests.support import pipeline as support
from tests.support.clocks import LedgerClock, clocked_postgres, clocked_sqlite
from tests.support.ledgers import ONE, TWO, OpenLedger, postgres_ledger, sqlite_ledger


@pytest.fixture(params=["sqlite", "postgres", "simulated"])
def fresh_ledgers(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], OpenLedger]:
    """Make one empty store after the other, each of which can be opened again and again."""
    numbers = count(1)

    def on_sqlite() -> OpenLedger:
        path = tmp_path / f"ledger-{next(numbers)}.db"
        return lambda: sqlite_ledger(path)

    def on_postgres() -> OpenLedger:
        url = request.getfixturevalue("postgres_server").new_schema()
        return lambda: postgres_ledger(url)

    def simulated() -> OpenLedger:
        store = SimulatedStore()
        return lambda: StoredLedger(store)

    made: dict[str, Callable[[], OpenLedger]]
    made = {"sqlite": on_sqlite, "postgres": on_postgres, "simulated": simulated}
    return made[request.param]


@pytest.fixture
def clocked_ledgers(
    request: pytest.FixtureRequest, fresh_ledgers: Callable[[], OpenLedger], tmp_path: Path
) -> Callable[[], tuple[OpenLedger, LedgerClock]]:
    """Make one empty store after the other, each with a clock of its own that a test sets."""
    if "postgres" in request.node.callspec.id:
        server = request.getfixturevalue("postgres_server")
        return lambda: clocked_postgres(server.new_schema())
    numbers = count(1)
    return lambda: clocked_sqlite(tmp_path / f"clocked-{next(numbers)}.db")


@pytest.fixture
def open_ledger(fresh_ledgers: Callable[[], OpenLedger]) -> OpenLedger:
    """Open one store."""
    return fresh_ledgers()


@pytest.fixture
def ledger(open_ledger: OpenLedger) -> Ledger:
    """A ledger with two sources."""
    ledger = open_ledger()
    for source in (ONE, TWO):
        ledger.register_source(source, "pipeline", "raw", "topic-1")
    ledger.take_generation("pipeline")
    return ledger


@pytest.fixture(params=["sqlite", "postgres"])
def either_ledger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let home folders have their ledger in one store, then in the other."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        monkeypatch.setattr(support, "new_ledger", server.new_schema)


@pytest.fixture(params=["folder", "memory", "file", "simulated"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield an empty place for evidence."""
    simulated = SimulatedEvidence()
    places = {
        "folder": "kept",
        "memory": f"memory://{uuid.uuid4().hex}/kept",
        "file": f"file://{tmp_path}/by-url",
        "simulated": url_of(simulated),
    }
    yield places[request.param]  # noqa: PT022 - a simulated store is there as long as it is held
