"""What the last run of each campaign found, and which campaigns were not run yet."""

from __future__ import annotations

from typing import Final

from scripts.reference.markdown import table
from tests import endurance
from tests.faults.campaign import CAMPAIGNS
from tests.simulation import campaign as simulation
from tests.support.kept_results import Result, kept

STRIKES: Final = {
    simulation.NAME: simulation.STRIKES,
    **{campaign.name: campaign.strikes for campaign in CAMPAIGNS},
    endurance.NAME: endurance.STRIKES,
}
"""What strikes in each campaign that exists."""


def results() -> str:
    """Return the last run of each campaign."""
    last = kept()
    return table(
        ("campaign", "what strikes", "count", "struck", "findings", "minutes", "date", "command"),
        (_row(last[name]) for name in STRIKES if name in last),
    )


def not_run() -> str:
    """Return the campaigns of which no result is kept."""
    last = kept()
    missing = [(name, strikes) for name, strikes in STRIKES.items() if name not in last]
    rows = ((name, strikes, "not run yet") for name, strikes in missing)
    return table(("campaign", "what strikes", ""), rows) if missing else "None."


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.campaign,
        STRIKES[result.campaign],
        f"{result.count:,} {result.counted}",
        ", ".join(f"{number:,} {kind}" for kind, number in result.struck.items()),
        f"{result.findings:,}",
        f"{result.minutes:.1f}",
        result.date,
        f"`{result.command}`",
    )
