"""The endpoints of the service, and its metrics."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Final, get_args

from fastapi.routing import APIRoute
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from scripts.reference.markdown import names, table

from admitone.ops.lag import Lag, PartitionLag, QueryLag
from admitone.service.http.api import ROUTERS
from admitone.service.http.context import Operator, Reader
from admitone.service.http.metrics import Metrics

_ROLES: Final = {
    get_args(annotated)[1].dependency: role
    for annotated, role in ((Reader, "read"), (Operator, "operate"))
}


def endpoints() -> str:
    """Return each endpoint with the role it asks for."""
    routes = [route for module in ROUTERS for route in module.router.routes]
    return table(
        ("endpoint", "role", "what it does"),
        ((f"`{_call(route)}`", _role(route), _about(route)) for route in routes),
    )


def _call(route: APIRoute) -> str:
    return " ".join((*route.methods, route.path.replace(":path", "")))


def _about(route: APIRoute) -> str:
    return " ".join(route.description.partition("\n\n")[0].split())


def _role(route: APIRoute) -> str:
    # The route to which events are delivered asks for its role itself.
    asked = [_ROLES[each.call] for each in route.dependant.dependencies if each.call in _ROLES]
    return asked[0] if asked else "ingest" if "POST" in route.methods else "any client"


def metrics() -> str:
    """Return the names of the service's metrics, with their labels."""
    service = Metrics(_stores(), SimpleNamespace(counts=Counter(verdicts={"": 0}), waiting=0))
    service.requests.labels("", "", "")
    service.latency.labels("")
    return table(
        ("metric", "type", "labels", "what it says"),
        (
            (f"`{_name(family)}`", family.type, names(_labels(family)), family.documentation)
            for family in text_string_to_metric_families(service.text().decode())
            if family.name.startswith("admitone_") and not family.name.endswith("_created")
        ),
    )


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> list[str]:
    return [name for name in family.samples[0].labels if name != "le"]


def _stores() -> SimpleNamespace:
    """Return stores of a pipeline with one partition, in which every figure is 0."""
    one = PartitionLag("", 0, 0, 0)
    query = QueryLag((one,))
    lag = Lag(query, query, query, query, ())
    info = SimpleNamespace(pipeline="", topic="", source=one, decided=0, re_read=0, cached=0)
    ledger = SimpleNamespace(runs=dict, sources=lambda: [info])
    return SimpleNamespace(lag=lambda: lag, ledger=ledger)
