"""What is running, how far behind it is, and which topics are not as agreed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from typing_extensions import TypedDict

from admitone.core.contract import TopicDocument
from admitone.ops.lag import Lag, QueryLag, Replays, Waiting
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


@dataclass(frozen=True, slots=True)
class Status:
    """What was found."""

    running: RunningNote | None
    dedup_running: RunningNote | None
    lag: Lag
    runs: Mapping[str, str]

    def document(self) -> StatusDocument:
        """Return it as the interface spells it."""
        lag = self.lag
        return {
            "running": self.running,
            **lag.waiting(),
            "re_read": lag.boundary.re_read,
            "replays": {"boundary": lag.boundary.replays, "analytics": lag.analytics.replays},
            "drift": [checked.document() for checked in lag.drift],
            "runs": run_lines(self.runs),
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
                "running": self.dedup_running,
                "ledger": _dedup(lag.dedup),
                "state": _dedup(lag.state),
            },
        }


def status(stores: Stores) -> Status:
    """Look what runs and how far behind it is."""
    settings, lag = stores.settings, stores.lag()
    notes = running(settings), running(settings, "running-dedup")
    return Status(*notes, lag, stores.ledger.runs())


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
