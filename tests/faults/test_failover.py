"""A standby takes the place of a PostgreSQL primary that dies under a boundary at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.failover import fail_over


@pytest.mark.parametrize("seed", range(2))
def test_a_synchronous_standby_is_followed_without_a_restart(seed: int, tmp_path: Path) -> None:
    assert fail_over(tmp_path / "home", seed, synchronous=True) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_standby_that_lagged_is_refused_and_the_remedy_mends_it(
    seed: int, tmp_path: Path
) -> None:
    assert fail_over(tmp_path / "home", seed, synchronous=False) == []
