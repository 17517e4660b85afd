"""`/metrics`: what the service did, and how far behind the pipeline is, under Prometheus names and units."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from admitone.core.errors import AdmitoneError

if TYPE_CHECKING:
    from admitone.ops.lag import Lag
    from admitone.ops.stores import Stores
    from admitone.service.door.door import Door
    from admitone.spark.checkpoints import StateFigures

_LATENCIES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WAITING: Final = {
    "undecided": ("deliveries", "Deliveries that wait for their decision."),
    "uncounted": ("records", "Admitted records that wait to be counted."),
    "in_flight": ("deliveries", "Deliveries in blocks that are claimed and not settled."),
    "ambiguous": ("deliveries", "Deliveries of unknown fate."),
    "pending_evidence": ("blocks", "Blocks whose evidence is not durable yet."),
}
_OF_SOURCE: Final = {
    "decided": "Deliveries decided.",
    "re_read": "Deliveries read again below the mark.",
    "cached": "Duplicates a worker knew without asking the ledger.",
}
_STATE_NOW: Final = {
    "rows": ("rows", "Keys that engine state remembers."),
    "bytes_in_memory": ("memory_bytes", "What engine state takes in memory."),
    "bytes_on_disk": ("disk_bytes", "What engine state takes on disk."),
}
_STATE_SO_FAR: Final = {
    "kept": ("kept_records", 1, "Records that engine state let through."),
    "late": ("late_records", 1, "Records too late for engine state to judge."),
    "dropped_duplicates": ("dropped_duplicates", 1, "Duplicates that engine state dropped."),
    "evicted": ("evicted_rows", 1, "Keys that engine state forgot."),
    "bytes_copied": ("copied_bytes", 1, "What was written to the durable copy of engine state."),
    "eviction_ms": ("eviction_seconds", 1_000, "Time engine state took to forget."),
}


class Metrics:
    """Counts requests, and asks the stores when Prometheus does."""

    def __init__(self, stores: Stores, door: Door) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "admitone_http_requests",
            "Requests by route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.latency = Histogram(
            "admitone_http_request_duration_seconds",
            "From the first byte of a request to the last of its answer.",
            ("route",),
            buckets=_LATENCIES,
            registry=self._registry,
        )
        self._registry.register(_Door(door))
        self._registry.register(_Pipeline(stores))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self._registry)


class _Door(Collector):
    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterable[Metric]:
        counts = self._door.counts
        decided = CounterMetricFamily(
            "admitone_door_events", "Events decided at the synchronous door.", labels=["verdict"]
        )
        for verdict, count in counts["verdicts"].items():
            decided.add_metric([verdict], count)
        yield decided
        yield CounterMetricFamily("admitone_door_blocks", "Blocks settled.", counts["blocks"])
        yield CounterMetricFamily(
            "admitone_door_refused_requests", "Requests refused as too much.", counts["refused"]
        )
        yield CounterMetricFamily(
            "admitone_door_failed_requests", "Requests that could not be decided.", counts["failed"]
        )
        yield GaugeMetricFamily(
            "admitone_door_waiting_events", "Events waiting at the door.", self._door.waiting
        )


class _Pipeline(Collector):
    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not ask the stores

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("admitone_stores_up", "Whether the ledger and the log answer.")
        try:
            lag, runs = self._stores.lag(), self._stores.ledger.runs()
            sources = self._stores.ledger.sources()
        except AdmitoneError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _waiting(lag, runs)
        for name, about in _OF_SOURCE.items():
            totals: Counted[tuple[str, str, str]] = Counted()
            for info in sources:
                place = info.pipeline, info.topic, str(info.source.partition)
                totals[place] += getattr(info, name)
            family = CounterMetricFamily(
                f"admitone_deliveries_{name}", about, labels=("pipeline", "topic", "partition")
            )
            for labels, total in totals.items():
                family.add_metric(labels, total)
            yield family


def _waiting(lag: Lag, runs: Mapping[str, str]) -> Iterable[Metric]:
    waiting = cast(Mapping[str, int], lag.waiting())
    for name, (unit, about) in _WAITING.items():
        yield GaugeMetricFamily(f"admitone_{name}_{unit}", about, waiting[name])
    yield GaugeMetricFamily(
        "admitone_drifted_topics", "Topics that are not as agreed.", len(lag.drift)
    )
    behind = GaugeMetricFamily(
        "admitone_partition_lag_offsets",
        "Offsets between a query and the end of its log.",
        labels=["query", "topic", "partition"],
    )
    for query, partitions in lag.queries:
        for each in partitions:
            behind.add_metric([query, each.topic, str(each.partition)], each.behind)
    yield behind
    counts = Counted(runs.values())
    by_state = GaugeMetricFamily("admitone_runs", "Runs by state.", labels=["state"])
    for state in ("OPEN", "CLOSED"):
        by_state.add_metric([state], counts[state])
    yield by_state
    yield from _engine_state(lag.state.figures) if lag.state else ()


def _engine_state(state: StateFigures) -> Iterable[Metric]:
    """Return what a dedup pipeline on engine state says about itself (DED-9)."""
    figures = cast(Mapping[str, int], state)
    for name, (unit, about) in _STATE_NOW.items():
        yield GaugeMetricFamily(f"admitone_dedup_state_{unit}", about, figures.get(name, 0))
    for name, (unit, scale, about) in _STATE_SO_FAR.items():
        amount = figures.get(name, 0) / scale
        yield CounterMetricFamily(f"admitone_dedup_state_{unit}", about, amount)
