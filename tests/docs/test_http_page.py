"""The examples of the reference page, run as they stand."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes import serving

PAGE = Path(__file__).parents[2] / "docs/reference/http.md"
_PAIR = re.compile(r"```http\n(.*?)```\n```json\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str]]:
    return _PAIR.findall(PAGE.read_text(encoding="utf-8"))


def differences(expected: Any, found: Any, path: str = "") -> list[str]:
    """Return where an answer is not as the page says; what the page leaves out is not looked at."""
    if expected == "…":
        return []
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for name, value in expected.items()
            for line in differences(value, found.get(name, "missing"), f"{path}/{name}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for at, pair in pairs for line in differences(*pair, f"{path}/{at}")]
    return [] if expected == found else [f"{path}: the page says {expected!r}, it is {found!r}"]


def test_every_example_of_the_page_is_answered_as_it_says(tmp_path):
    wrong = []
    with serving(tmp_path) as running, running.client() as client:
        for request, answer in examples():
            head, _, body = request.partition("\n\n")
            first, *headers = head.strip().splitlines()
            method, path = first.split(" ", 1)
            named = dict(line.split(": ", 1) for line in headers)
            response = client.request(method, path, headers=named, content=body.strip().encode())
            expected = json.loads(answer)
            status = expected.get("status", HTTPStatus.OK)
            if response.status_code != status:
                wrong.append(f"{first}: {response.status_code}, {response.text}")
            wrong += [f"{first}{line}" for line in differences(expected, response.json())]

    assert wrong == []
    assert len(examples()) >= 12


@pytest.mark.parametrize(
    ("expected", "found"),
    [({"a": 1}, {"a": 2}), ([1], [1, 2]), ({"a": "…", "b": 1}, {"a": 1}), ("x", None)],
)
def test_an_answer_that_differs_is_noticed(expected, found):
    assert differences(expected, found)
