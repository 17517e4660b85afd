"""The errors a caller can catch.

AdmitoneError
├── ConfigurationError      exit 3   a setting is wrong; refused at start
├── ServiceUnreachable      exit 4   a store or broker does not answer
│   ├── NotWritten          exit 4   an append failed, and certainly left nothing behind
│   │   └── NeedsFence      exit 4   nothing was begun: the producer must be taken over again before it goes on
│   └── Unreadable          exit 4   what the log holds cannot be told right now
├── RecordsRefused          exit 1   the broker certainly refuses some records of an append
├── CircuitOpen             exit 1   too much would have gone to quarantine
├── RunIsRed                exit 5   a gate refused to close a run
├── AmbiguityRemains        exit 6   an admission could not be resolved
├── IntegrityError          exit 7   stored evidence contradicts itself
├── ContractDrift           exit 7   a topic is not as agreed
├── Fenced                  exit 8   a successor took over; this worker must stop
├── MarkMoved               exit 1   progress was made by another worker since it was read
└── NotFound                exit 1   what was asked for does not exist

Every message carries the error's code, because that is all that survives a worker's traceback, and says what
was expected, what came and what to try.
"""

from __future__ import annotations

from typing import Any, ClassVar


class AdmitoneError(Exception):
    """Something the caller can act on; never a programming mistake."""

    code: ClassVar[str] = "FAILED"
    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"[{self.code}] {problem}" + (f" Try: {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.remedy)


class ConfigurationError(AdmitoneError):
    """A setting is missing, unknown or contradicts another."""

    code = "CONFIGURATION"
    exit_code = 3


class ServiceUnreachable(AdmitoneError):
    """A store or broker this command needs does not answer."""

    code = "UNREACHABLE"
    exit_code = 4


class NotWritten(ServiceUnreachable):
    """An append failed before anything could be written."""

    code = "NOT_WRITTEN"


class NeedsFence(NotWritten):
    """A request of an earlier append may still arrive, and would act on this one: fence it first."""

    code = "NEEDS_FENCE"


class Unreadable(ServiceUnreachable):
    """What is committed up to an offset cannot be told within the time allowed."""

    code = "UNREADABLE"


class RecordsRefused(AdmitoneError):
    """The broker certainly refuses these records, by topic and row, and has written nothing."""

    code = "RECORDS_REFUSED"

    def __init__(self, problem: str, rows: dict[str, list[int]], remedy: str = "") -> None:
        self.rows = rows
        super().__init__(problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.rows, self.remedy)


class CircuitOpen(AdmitoneError):
    """So many deliveries would have been quarantined that the pipeline stopped before deciding them."""

    code = "CIRCUIT_OPEN"


class RunIsRed(AdmitoneError):
    """A run has open blockers and cannot be closed."""

    code = "RED"
    exit_code = 5


class AmbiguityRemains(AdmitoneError):
    """At least one admission can neither be proved published nor proved absent."""

    code = "AMBIGUOUS"
    exit_code = 6


class IntegrityError(AdmitoneError):
    """What a store holds contradicts what it, or another store, says."""

    code = "INTEGRITY"
    exit_code = 7


class ContractDrift(AdmitoneError):
    """A topic differs from its contract in a way that cannot be worked around."""

    code = "CONTRACT_DRIFT"
    exit_code = 7


class Fenced(AdmitoneError):
    """A successor owns this source partition or producer name now."""

    code = "FENCED"
    exit_code = 8


class MarkMoved(AdmitoneError):
    """A compare-and-set found another value than the one that was read."""

    code = "MARK_MOVED"


class NotFound(AdmitoneError):
    """The named thing does not exist."""

    code = "NOT_FOUND"
