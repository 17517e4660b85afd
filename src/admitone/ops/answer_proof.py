"""An answer with everything it was made from, and a recount of the archive that must lie within its bounds."""

from __future__ import annotations

import base64
from typing import cast

from typing_extensions import TypedDict

from admitone.analytics import item_rules
from admitone.analytics.recompute.recount import recount
from admitone.core.errors import AdmitoneError, IntegrityError
from admitone.core.items import list_name
from admitone.core.windows import parse_window
from admitone.ops.stores import Stores
from admitone.results.documents import TopAnswer

ANSWER_VERSION = 1


class CountedUpTo(TypedDict):
    """How far a partition of the admitted log was counted."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class Sketches(TypedDict):
    """What the answer was read from, as it is stored, in base64."""

    count_min: str
    space_saving: str
    totals: str


class Recounted(TypedDict):
    """One item of the answer, counted exactly."""

    item: str
    count: int


class AnswerProof(TypedDict):
    """An answer, its sketches and marks, and what the archive says of the same items."""

    version: int
    answer: TopAnswer
    rules: list[str]
    marks: list[CountedUpTo]
    sketches: Sketches
    recount: list[Recounted]
    recounted_total: int
    outside: list[str]
    """Items whose recount does not lie within their bounds, and what else does not agree."""


def answer_proof(
    stores: Stores, dimension: str, window: str, where: str | None, k: int | None
) -> AnswerProof:
    """Return an answer with what it was made from; raise where the archive does not bear it out."""
    settings, reader = stores.settings, stores.sketches
    with reader.snapshot():
        answer = stores.answers.top(dimension, window, where, k)
        attribute, _, value = (where or "").partition("=")
        name = list_name(dimension, attribute, value) if where else dimension
        named, state = parse_window(answer["window"]), reader.state()
        sketch = next((each for _, each in reader.sketches([named], name)), None)
        kept = reader.kept_values().get((dimension, attribute))
        rules = reader.rules_of(named)
    if sketch is None:
        raise AdmitoneError(
            f"Window {answer['window']} is answered from the history: its sketches are gone.",
            "choose a window that admitone windows lists",
        )
    marks = {(mark.topic_id, mark.partition): mark.offset for mark in state.marks}
    counts = recount(
        stores.ledger, stores.evidence, item_rules(settings),
        [entry.topic for entry in settings.topics], marks, named, name,
        state.parameters.lateness, kept.values if kept else (),
    )  # fmt: skip
    outside = [
        f"{line['item']}: {counts[line['item']]} is not within {line['lower']} and {line['upper']}"
        for line in answer["items"]
        if not line["lower"] <= counts[line["item"]] <= line["upper"]
    ]
    if counts.total() != answer["total"]:
        outside.append(f"all items: {counts.total()} is not {answer['total']}")
    parts = (base64.b64encode(part).decode() for part in sketch.to_bytes())
    return {
        "version": ANSWER_VERSION,
        "answer": answer,
        "rules": rules,
        "marks": [
            {"topic": m.topic, "topic_id": m.topic_id, "partition": m.partition, "offset": m.offset}
            for m in state.marks
        ],
        "sketches": cast(Sketches, dict(zip(Sketches.__annotations__, parts, strict=True))),
        "recount": [
            {"item": line["item"], "count": counts[line["item"]]} for line in answer["items"]
        ],
        "recounted_total": counts.total(),
        "outside": outside,
    }


def refuse_outside(found: AnswerProof) -> None:
    """Raise where the recount does not lie within the bounds."""
    if found["outside"]:
        raise IntegrityError(
            f"The archive does not bear the answer out: {'; '.join(found['outside'][:5])}.",
            "admitone recompute --from-archive counts everything again",
        )
