"""What is running, how far behind it is, and which topics are not as agreed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from typing_extensions import TypedDict

from admitone.core.contract import TopicDocument
from admitone.ops.lag import QueryLag, Replays, Waiting
from admitone.ops.run import RunningNote, running
from admitone.ops.stores import Stores
from admitone.spark.checkpoints import StateFigures

RunState = Literal["OPEN", "CLOSED"]


class RunLine(TypedDict):
    """A run there is."""

    run_id: str
    state: RunState


class ReplaysOfReaders(TypedDict):
    """The same of the two readers there are."""

    boundary: Replays
    analytics: Replays


class PartitionLine(TypedDict):
    """One partition that a query reads: how far it came, and how far the log goes."""

    query: str
    topic: str
    partition: int
    done: int
    end: int
    lag: int


class DedupDocument(TypedDict):
    """How far a dedup pipeline is, with what its engine says about itself."""

    waiting: int
    in_flight: int
    ambiguous: int
    pending_evidence: int
    re_read: int
    figures: StateFigures


class DedupStatus(TypedDict):
    """The dedup pipeline on the ledger and the one on engine state, where they ever ran."""

    running: RunningNote | None
    ledger: DedupDocument | None
    state: DedupDocument | None


class StatusDocument(Waiting):
    """What runs, what waits, and which topics are not as agreed."""

    running: RunningNote | None
    re_read: int
    replays: ReplaysOfReaders
    drift: list[TopicDocument]
    runs: list[RunLine]
    partitions: list[PartitionLine]
    dedup: DedupStatus


def status(stores: Stores) -> StatusDocument:
    """Look what runs and how far behind it is."""
    lag = stores.lag()
    return {
        "running": running(stores.settings),
        **lag.waiting(),
        "re_read": lag.boundary.re_read,
        "replays": {"boundary": lag.boundary.replays, "analytics": lag.analytics.replays},
        "drift": [checked.document() for checked in lag.drift],
        "runs": run_lines(stores.ledger.runs()),
        "partitions": [
            {
                "query": query,
                "topic": partition.topic,
                "partition": partition.partition,
                "done": partition.done,
                "end": partition.end,
                "lag": partition.behind,
            }
            for query, partitions in lag.queries
            for partition in partitions
        ],
        "dedup": {
            "running": running(stores.settings, "running-dedup"),
            "ledger": _dedup(lag.dedup),
            "state": _dedup(lag.state),
        },
    }


def run_lines(runs: Mapping[str, str]) -> list[RunLine]:
    """Return the runs there are as the interface spells them."""
    return [{"run_id": run_id, "state": cast(RunState, state)} for run_id, state in runs.items()]


def _dedup(lag: QueryLag | None) -> DedupDocument | None:
    if lag is None:
        return None
    return {
        "waiting": lag.waiting,
        "in_flight": lag.in_flight,
        "ambiguous": lag.ambiguous,
        "pending_evidence": lag.pending_evidence,
        "re_read": lag.re_read,
        "figures": lag.figures,
    }
