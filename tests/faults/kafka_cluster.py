"""A Kafka of three nodes, one of which is taken away under a boundary at work and brought back, again and again.

A node is killed, paused or cut off from everything. Beside what is compared on any Kafka, blocks must go on being
settled while it is away.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress

from admitone.core.decisions import BlockState
from admitone.ledger import open_ledger_reader
from tests.faults.database_harness import weather
from tests.faults.harness import settings_for
from tests.faults.kafka_harness import prepare_on_kafka, verify_on_kafka
from tests.faults.pieces import Found
from tests.servers.kafka_cluster import NODES, KafkaCluster

_EVENTS = 6_000
_ENOUGH = 3
"""Blocks that show that it goes on: the first may have been published before the node went."""
_LONGEST_S = 60.0


@dataclass
class OneAway:
    """A strike that takes one node of three away, and brings it back once enough was settled without it."""

    cluster: KafkaCluster
    home: Path
    waits: dict[str, list[float]] = field(default_factory=dict)
    """How long it took, in seconds, until enough was settled, by what was done to the node."""
    problems: list[str] = field(default_factory=list)
    _ways: list[str] = field(default_factory=list)
    _away: tuple[str, float, int] | None = None

    def __call__(self, rng: random.Random) -> int:
        """Take a node away, or bring back the one that is; return how many came back."""
        if self._away is None:
            strikes = {
                "killed": self.cluster.kill,
                "paused": self.cluster.pause,
                "cut off": self.cluster.cut_off,
            }
            self._ways = self._ways or rng.sample(list(strikes), len(strikes))
            how = self._ways.pop()
            strikes[how](rng.choice(NODES))
            self._away = how, time.monotonic(), self._settled()
            return 0
        how, since, before = self._away
        waited = time.monotonic() - since
        if self._settled() < before + _ENOUGH:
            if waited < _LONGEST_S:
                return 0
            self.problems.append(f"nothing goes on {waited:.0f} s after one of three was {how}")
        self.waits.setdefault(how, []).append(waited)
        return self.bring_back()

    def bring_back(self) -> int:
        """Bring back the node that is away; return whether one was."""
        was_away, self._away = self._away is not None, None
        if was_away:
            self.cluster.bring_back()
        return int(was_away)

    def _settled(self) -> int:
        ledger = open_ledger_reader(settings_for(self.home))
        try:
            return sum(block.state is BlockState.SETTLED for block in ledger.blocks())
        finally:
            ledger.close()


def cluster_storm(home: Path, seed: int, strike: OneAway, wanted: int) -> tuple[int, list[str]]:
    """Take nodes away under a boundary at work; return how often, and what is wrong."""
    bootstrap = strike.cluster.bootstrap
    truth = prepare_on_kafka(home, seed, bootstrap, events=_EVENTS, replication=len(NODES))
    left = 0

    def check() -> list[str]:
        nonlocal left
        left = strike.bring_back()
        return verify_on_kafka(home, truth, bootstrap)

    struck, problems = weather(home, random.Random(seed), strike, wanted, 0.3, check)
    return struck + left, problems + strike.problems


def cluster_campaign(strikes: int, seed: int, folder: Path, console: Console) -> Found:
    """Take one of three nodes away so many times; return how often it was, and what went wrong."""
    rng, homes = random.Random(seed), (folder / f"cluster-{number}" for number in count())
    struck, findings, waits = 0, list[str](), dict[str, list[float]]()
    cluster = KafkaCluster()
    try:
        with Progress(console=console) as progress:
            task = progress.add_task("one of three brokers away", total=strikes)
            while struck < strikes:
                home = next(homes)
                strike = OneAway(cluster, home, waits)
                hits, problems = cluster_storm(
                    home, rng.randrange(1 << 30), strike, strikes - struck
                )
                struck += hits
                if not hits:
                    problems.append(f"only {struck} of {strikes} strikes struck")
                findings += [f"one of three brokers away: {problem}" for problem in problems]
                progress.update(task, completed=struck)
                if not hits:
                    break
    finally:
        cluster.close()
    for how, seconds in sorted(waits.items()):
        console.print(
            f"  one of three {how:<15} {len(seconds):>6}  {_ENOUGH} blocks settled after"
            f" {median(seconds):.1f} s in the median, {max(seconds):.1f} s at most"
        )
    return {"strikes": struck}, findings
