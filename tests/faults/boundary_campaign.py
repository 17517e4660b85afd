"""Kills and suspensions by the thousand at the crash points of `admit()`."""

from __future__ import annotations

import random
from pathlib import Path

from rich.console import Console

from admitone.demo.traffic import Truth
from tests.faults.harness import Case, prepare, random_case, run_case
from tests.faults.pieces import Found, run_pieces

_TEMPLATES = 12


def boundary_campaign(cases: int, seed: int, folder: Path, console: Console) -> Found:
    """Strike the boundary in plain processes, each case on a copy of a prepared home."""
    rng = random.Random(seed)
    homes = [folder / f"template-{number}" for number in range(min(cases, _TEMPLATES))]
    templates = [(home, prepare(home, seed + number)) for number, home in enumerate(homes)]
    pieces = (
        (_strike, random_case(rng), *rng.choice(templates), folder / f"case-{number}")
        for number in range(cases)
    )
    return run_pieces("boundary", pieces, console)


def _strike(case: Case, template: Path, truth: Truth, home: Path) -> Found:
    struck, problems = run_case(case, template, home, truth)
    return {"crash points": struck}, [f"{case}: {problem}" for problem in problems]
