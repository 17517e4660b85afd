"""The API keeps to its own description: Schemathesis asks it everything, good and bad."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.service.homes import Running


@pytest.fixture
def described(service: Running):
    return schemathesis.openapi.from_url(f"{service.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_every_answer_is_as_described(case, service):
    if case.path == "/v1/live":
        case.query = {**(case.query or {}), "beats": 1}
    case.call_and_validate()
