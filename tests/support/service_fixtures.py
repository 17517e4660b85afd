"""A service over decided and counted traffic, shared by the tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.servers.service import Running
from tests.support.homes import fill, serving


@pytest.fixture(scope="session")
def filled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder nobody may change."""
    home = tmp_path_factory.mktemp("service")
    fill(home)
    return home


@pytest.fixture(scope="session")
def service(filled_home: Path) -> Iterator[Running]:
    """The service over it; whoever delivers to it uses a run of their own."""
    with serving(filled_home) as running:
        yield running


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made
