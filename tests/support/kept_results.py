"""What came of the last run of each campaign: a file for each below `docs/campaigns/`, written whatever it found.

`make report` writes these files into docs/reliability.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

KEPT: Final = Path(__file__).parents[2] / "docs" / "campaigns"


@dataclass(frozen=True)
class Result:
    """What came of one run, and the command that repeats it."""

    campaign: str
    count: int
    counted: str
    struck: dict[str, int]
    findings: int
    seed: int | None
    minutes: float
    command: str
    date: str

    def keep(self, folder: Path = KEPT) -> None:
        """Write it over the result of the run before."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.campaign.replace(' ', '-')}.json"
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")


def today() -> str:
    """Return the day a result is kept under."""
    return datetime.now(UTC).date().isoformat()


def kept(folder: Path = KEPT) -> dict[str, Result]:
    """Return the results that are kept, by the name of the campaign."""
    read = (Result(**json.loads(file.read_text("utf-8"))) for file in sorted(folder.glob("*.json")))
    return {result.campaign: result for result in read}
