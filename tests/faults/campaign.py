"""Campaigns of random faults, each by itself: `make faults`.

    python -m tests.faults                          all of them
    python -m tests.faults --only boundary,spark    two of them
    python -m tests.faults --kafka 30 --crowd 0     one of them shorter, one left out

docs/campaigns keeps what came of each, over what came of the run before.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tests.faults.boundary_campaign import boundary_campaign
from tests.faults.clock_campaign import clock_campaign
from tests.faults.crowd_campaign import crowd_campaign
from tests.faults.database_campaign import cut_campaign, kill_campaign
from tests.faults.kafka_campaign import kafka_campaign, late_campaign
from tests.faults.kafka_cluster import cluster_campaign
from tests.faults.ledger_campaign import going_back_campaign, standby_campaign
from tests.faults.spark_campaign import spark_campaign
from tests.support.kept_results import KEPT, Result, today

_SHOWN = 50


@dataclass(frozen=True)
class Campaign:
    """What `run` strikes, how many times by default, and what is counted.

    It is told the count, the seed, a folder of its own and where to show its progress. It returns how many faults
    struck, or how many of each kind, and what went wrong.
    """

    name: str
    strikes: str
    count: int
    counted: str
    run: Callable[[int, int, Path, Console], tuple[int | Mapping[str, int], list[str]]]

    @property
    def option(self) -> str:
        return self.name.replace(" ", "-")

    def command(self, count: int, seed: int) -> str:
        """Return what repeats a run."""
        only = f"--only {self.option} --{self.option} {count} --seed {seed}"
        return f"python -m tests.faults {only}"


CAMPAIGNS = (
    Campaign("boundary", "kills and suspensions at crash points of the boundary and the ledger",
             2_000, "cases", boundary_campaign),
    Campaign("database kills", "PostgreSQL is killed and started again",
             50, "kills", kill_campaign),
    Campaign("database cuts", "connections to PostgreSQL are cut, also before and after a COMMIT",
             100, "cuts", cut_campaign),
    Campaign("crowd", "two pipelines at once are delivered the same events, on each store",
             500_000, "events", crowd_campaign),
    Campaign("kafka", "crash points, cut connections, a broker killed or paused, transactions left open",
             300, "faults", kafka_campaign),
    Campaign("one of three brokers", "a broker of three is killed, paused or cut off, and admission goes on",
             100, "strikes", cluster_campaign),
    Campaign("late requests", "the broker gets a request late, between two that follow it",
             300, "of each kind", late_campaign),
    Campaign("ledgers that go back", "an older copy takes the place of a ledger at work",
             50, "of each store", going_back_campaign),
    Campaign("standbys", "a standby takes the place of a PostgreSQL that died",
             50, "of each kind", standby_campaign),
    Campaign("clocks", "clocks of brokers, worker, driver and database jump, forward and back",
             100, "jumps", clock_campaign),
    Campaign("spark", "kills and suspensions at crash points of a whole Spark pipeline",
             60, "cases", spark_campaign),
)  # fmt: skip
"""Every campaign of faults; `make report` says which of them were not run yet."""


def run(campaign: Campaign, count: int, seed: int, console: Console) -> tuple[Result, list[str]]:
    """Run one campaign; an exception is a finding of it."""
    began = time.monotonic()
    struck: int | Mapping[str, int] = {}
    with TemporaryDirectory(prefix="admitone-faults-", ignore_cleanup_errors=True) as folder:
        try:
            struck, findings = campaign.run(count, seed, Path(folder), console)
        except Exception:
            findings = [traceback.format_exc()]
    result = Result(
        campaign=campaign.name,
        count=count,
        counted=campaign.counted,
        struck={campaign.counted: struck} if isinstance(struck, int) else dict(struck),
        findings=len(findings),
        seed=seed,
        minutes=round((time.monotonic() - began) / 60, 1),
        command=campaign.command(count, seed),
        date=today(),
    )
    return result, findings


def main(arguments: Sequence[str] | None = None, campaigns: Sequence[Campaign] = CAMPAIGNS) -> None:
    """Run campaigns one after the other; exit with 1 when any of them found something."""
    wanted = _options(campaigns).parse_args(arguments)
    console, totals = Console(), Table("campaign", "count", "struck", "findings", "minutes")
    console.print(f"seed {wanted.seed}")
    found = 0
    for campaign in wanted.only or campaigns:
        count = getattr(wanted, campaign.option)
        if not count:
            continue
        result, findings = run(campaign, count, wanted.seed, console)
        result.keep(wanted.results)
        for finding in findings[:_SHOWN]:
            console.print(f"{campaign.name}: {finding}", markup=False, soft_wrap=True)
        found += len(findings)
        struck = ", ".join(f"{number:,} {kind}" for kind, number in result.struck.items())
        counted, minutes = f"{count:,} {campaign.counted}", f"{result.minutes:.1f}"
        came = f"{campaign.name}: {struck}, {len(findings):,} findings, {minutes} minutes"
        console.print(came, soft_wrap=True)
        totals.add_row(campaign.name, counted, struck, f"{len(findings):,}", minutes)
    console.print(totals)
    sys.exit(1 if found else 0)


def _options(campaigns: Sequence[Campaign]) -> argparse.ArgumentParser:
    by_option = {campaign.option: campaign for campaign in campaigns}

    def named(listed: str) -> list[Campaign]:
        try:
            return [by_option[name.replace(" ", "-")] for name in listed.split(",")]
        except KeyError as unknown:
            known = ", ".join(by_option)
            raise argparse.ArgumentTypeError(f"{unknown} is none of {known}") from None

    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=named, metavar="NAME[,NAME]", help="these, not all of them")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--results", type=Path, default=KEPT, help="where results are kept")
    for campaign in campaigns:
        parser.add_argument(
            f"--{campaign.option}", type=int, default=campaign.count, metavar="N",
            dest=campaign.option,
            help=f"{campaign.strikes}: {campaign.count:,} {campaign.counted}, 0 to leave it out",
        )  # fmt: skip
    return parser
