"""When a run may be closed: five criteria, each a check that names its evidence (CLS-1, CLS-2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

# The service describes its answers by these types, which typing's own does not allow before Python 3.12.
from typing_extensions import TypedDict


class Criterion(StrEnum):
    """What must hold for a run to be green."""

    IDENTITY = "identities present and deterministic"
    CONTRADICTION = "contradictions detected and resolved"
    DRIFT = "no drift between evidence and ledger"
    EVIDENCE = "evidence complete"
    CONTRACT = "topics as the contract says"


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that keeps a run red, and the command that shows or resolves it."""

    kind: str
    count: int
    what: str
    command: str


class CheckDocument(TypedDict):
    """One criterion of the gate."""

    criterion: Criterion
    passed: bool
    evidence: str
    blockers: tuple[Blocker, ...]


class GateDocument(TypedDict):
    """A run's gate."""

    run_id: str
    gate: Literal["green", "red"]
    checks: list[CheckDocument]


@dataclass(frozen=True, slots=True)
class Check:
    """One criterion: what was looked at, and what was found against it."""

    criterion: Criterion
    evidence: str
    blockers: tuple[Blocker, ...] = ()

    @property
    def passed(self) -> bool:
        """Tell whether nothing speaks against it."""
        return not self.blockers


@dataclass(frozen=True, slots=True)
class Gate:
    """A run's checks; red as long as one of them fails."""

    run_id: str
    checks: tuple[Check, ...] = ()

    @property
    def green(self) -> bool:
        """Tell whether the run may be closed."""
        return all(check.passed for check in self.checks)

    @property
    def blockers(self) -> list[Blocker]:
        """Return everything that speaks against closing."""
        return [blocker for check in self.checks for blocker in check.blockers]

    def document(self) -> GateDocument:
        """Return the gate as the interface spells it."""
        return {
            "run_id": self.run_id,
            "gate": "green" if self.green else "red",
            "checks": [
                {
                    "criterion": check.criterion,
                    "passed": check.passed,
                    "evidence": check.evidence,
                    "blockers": check.blockers,
                }
                for check in self.checks
            ],
        }
