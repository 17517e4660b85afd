"""One generated stream and what is true about it, made once for all tests of the generator."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache

from admitone.demo.traffic import Delivery, GeneratorOptions, Truth, TruthRecorder, generate

OPTIONS = GeneratorOptions(20_000, malformed=0.02, run="r1")
MINUTE_MS, DAY_MS = 60_000, 86_400_000


@cache
def stream() -> list[Delivery]:
    return list(generate(OPTIONS))


@cache
def oracle() -> Truth:
    recorder = TruthRecorder(OPTIONS)
    for delivery in stream():
        recorder.record(delivery)
    return recorder.truth()


def refused_for(reason):
    """Return the lines that are refused for a reason; there are some for each."""
    lines = [delivery.line for delivery in stream() if delivery.reason == reason]
    assert lines, reason
    return lines


def milliseconds(delivery):
    text = json.loads(delivery.line)["metadata"]["timestamp"]
    return round(datetime.fromisoformat(text).timestamp() * 1000)
