"""Deliveries that an operator releases from quarantine."""

from __future__ import annotations

from typing import Any

from admitone.boundary.release import Choice, Report, Signature, release
from admitone.evidence.originals import open_deliveries
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from tests.support.pipeline import Pipeline

ANN = Signature("ann", "checked by hand")


def release_all(pipeline: Pipeline, choice: Choice | None = None, **wanted: Any) -> Report:
    fetch = open_deliveries(pipeline.settings, pipeline.ledger)
    chosen = in_quarantine(pipeline.ledger, Filter(**wanted))
    report = release(pipeline.boundary, fetch, chosen, ANN, choice)
    pipeline.run()
    return report


FUTURE = {"time": "2126-01-05T10:00:00.000Z"}
