"""Every crash point of the boundary, struck at least once each way."""

from __future__ import annotations

from pathlib import Path

import pytest

from admitone.demo.traffic import Truth
from admitone.infra.crash_points import BOUNDARY_POINTS, LEDGER_POINTS
from tests.faults.harness import Case, Fault, prepare, run_case, start, verify
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    home = tmp_path_factory.mktemp("faults") / "template"
    return home, prepare(home, seed=11)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("point", "action"),
    [(point, action) for point in BOUNDARY_POINTS for action in ("kill", "stop")]
    + [(point, "kill") for point in LEDGER_POINTS],
)
def test_a_fault_at_any_point_changes_no_decision(
    point: str,
    action: str,
    store: str,
    prepared: tuple[Path, Truth],
    tmp_path: Path,
    postgres_server: PostgresServer,
) -> None:
    template, truth = prepared
    url = postgres_server.new_schema() if store == "postgres" else None
    faults = [Fault(point, 1 if point.startswith(("evidence", "recovery")) else 2, action)]
    if point.startswith("recovery.") and point != "recovery.fenced":
        faults.insert(0, Fault("boundary.published", 2, "kill"))
    case = Case(0, tuple(faults), (20,) * (len(faults) + 1))

    struck, problems = run_case(case, template, tmp_path / "home", truth, url)

    assert struck == len(faults)
    assert problems == []


def test_a_zombie_wakes_up_after_its_successor_published(
    prepared: tuple[Path, Truth], tmp_path: Path
) -> None:
    template, truth = prepared
    faults = tuple(Fault("boundary.publishing", passage, "stop") for passage in (1, 2, 3))
    struck, problems = run_case(
        Case(0, faults, (9, 20, 50, 130)), template, tmp_path / "home", truth
    )

    assert struck == 3
    assert problems == []


def test_reading_the_whole_log_again_changes_only_the_re_read_counter(
    prepared: tuple[Path, Truth], tmp_path: Path
) -> None:
    import shutil

    from admitone.ledger import open_ledger
    from admitone.ledger.books import books
    from tests.faults.harness import settings_for

    template, truth = prepared
    home = tmp_path / "home"
    shutil.copytree(template, home)
    for _ in range(2):
        process = start(home, 50, None)
        process.join()
        assert process.exitcode == 0

    assert verify(home, truth) == []
    (run,) = books(open_ledger(settings_for(home)))["runs"]
    assert run["re_read"] == run["deliveries"] == len(truth.decisions)
