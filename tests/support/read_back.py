"""What is delivered before a ledger is lost, and what is compared after it was read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from admitone.core.decisions import BlockState
from admitone.core.errors import ServiceUnreachable
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA
from tests.servers.copies import copy_of
from tests.support.flaky import Flaky
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event

PARTITIONS = 3


SECTIONS: dict[str, dict[str, Any]] = {
    "transport": {"raw_partitions": PARTITIONS},
    "pipeline": {"max_block": 7, "quarantine_limit": 1.0},
}


_names = count()


def deliver(pipeline: Pipeline, deliveries: Iterable[tuple[int, bytes]]) -> None:
    """Append lines to partitions of the raw log, whatever the events' ids."""
    partitions, lines = zip(*deliveries, strict=True)
    name = f"test-{next(_names)}"
    table = pa.table(
        [
            pa.array(partitions, pa.int32()),
            pa.nulls(len(lines), pa.binary()),
            pa.array(lines, pa.binary()),
            pa.array([[]] * len(lines), HEADERS_TYPE),
        ],
        schema=OUTGOING_SCHEMA,
    )
    epoch = pipeline.transport.init_producer(name)
    pipeline.transport.append(name, epoch, {pipeline.topic.name: table})


def by_position(pipeline: Pipeline) -> dict[tuple[int, ...], tuple[Any, ...]]:
    """Return what was decided at each source position, and where it went."""
    return {
        tuple(row["source"].values()): (
            row["verdict"], row["reason"], row["identity"], row["payload_hash"], str(row["bus"]),
            str(row["first"]),
        )
        for row in pipeline.decisions()
    }  # fmt: skip


def without_moments(found: dict[tuple[int, ...], tuple[Any, ...]]) -> object:
    """Leave out when a record was published: a block that was cut elsewhere names another moment."""
    return {
        position: (*rest[:4], rest[4].partition("'published_at'")[0], rest[5])
        for position, rest in found.items()
    }


def one_of_unknown_fate(pipeline: Pipeline, lines: list[tuple[int, bytes]]) -> None:
    """Deliver lines whose publish fails, and nobody can say how."""
    deliver(pipeline, lines)
    generation = pipeline.boundary.start(pipeline.topic)
    owned = pipeline.own(lines[0][0], generation)
    flaky = Flaky(pipeline.transport, "down-before")
    pipeline.boundary.transport = owned._transport = flaky  # type: ignore[assignment]
    with pytest.raises(ServiceUnreachable):
        list(owned.admit(pipeline.records(lines[0][0])))
    pipeline.boundary.transport = pipeline.transport
    assert len(pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])) == 1


def copied_in_flight(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Copy the ledger while a block is in flight, and another source was claimed behind its records."""
    deliver(pipeline, [(0, event("a")), (0, event("b")), (1, event("c")), (1, event("a"))])
    generation = pipeline.boundary.start(pipeline.topic)
    held = pipeline.own(0, generation)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger, "conclude", interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(held.admit(pipeline.records(0)))
    assert sorted(on_the_log(pipeline)) == ["a", "b"]
    # Without the duplicate, which waits for the block in flight.
    list(pipeline.own(1, generation).admit(pipeline.records(1).slice(0, 1)))
    return copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt
