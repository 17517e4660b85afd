"""Documents held against their descriptions: no key is missing, and none is there that nobody described."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx
import jsonschema_rs
from pydantic import TypeAdapter

from admitone.service.http.api import create_app
from admitone.settings import Settings


def strict(schema: Any) -> Any:
    """Return a description that also refuses keys it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        found["additionalProperties"] = False
    return found


def problems_of(schema: Any, document: Any) -> list[str]:
    """Return in what a document is not as described."""
    found = jsonschema_rs.validator_for(schema).iter_errors(document)
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message[:300]}" for error in found]


def differing(described: Any, document: Any) -> list[str]:
    """Return in what a document is not of a type."""
    return problems_of(strict(TypeAdapter(described).json_schema()), document)


class DescribedApi:
    """The API's own description, and which of its routes were seen to keep to it."""

    def __init__(self, openapi: dict[str, Any]) -> None:
        self._components = strict(openapi["components"])
        self.routes = {
            (method.upper(), path): route["responses"]
            for path, methods in openapi["paths"].items()
            for method, route in methods.items()
        }

    def check(self, response: httpx.Response) -> None:
        """Refuse an answer that is not as its route says; live streams have no end to wait for."""
        kind = response.headers.get("content-type", "").partition(";")[0]
        place = self.route_of(response.request)
        if kind == "text/event-stream" or (place is None and response.is_success):
            return
        response.read()
        if place is None:
            content = {"application/problem+json": {"schema": _reference("Problem")}}
        else:
            answers = self.routes[place]
            assert str(response.status_code) in answers, (place, response.status_code)
            content = answers[str(response.status_code)]["content"]
        assert kind in content, (place, response.status_code, kind)
        if kind.endswith("json"):
            schema = {**strict(content[kind]["schema"]), "components": self._components}
            wrong = problems_of(schema, json.loads(response.content))
            assert wrong == [], (place, response.status_code, wrong)

    def route_of(self, request: httpx.Request) -> tuple[str, str] | None:
        """Return the route that answers a request: the most particular one that fits."""
        path = request.url.raw_path.partition(b"?")[0].decode()
        fitting = [
            place
            for place in self.routes
            if place[0] == request.method
            and re.fullmatch(re.sub(r"\{[^}]*\}", ".+", place[1]), path)
        ]
        return max(fitting, key=lambda place: len(place[1]), default=None)


@cache
def described_api() -> DescribedApi:
    """Return what the service says about itself."""
    return DescribedApi(create_app(Settings()).openapi())


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
