"""Simulated time: it passes as calls are made, and each machine reads it off a clock of its own that may be wrong."""

from __future__ import annotations


class SimulatedTime:
    """The true time, in milliseconds since 1970; nobody reads it but machines' clocks."""

    def __init__(self, now: int) -> None:
        self.now = now

    def pass_by(self, milliseconds: int) -> None:
        """Let time pass; it never goes back."""
        self.now += max(milliseconds, 0)


class MachineClock:
    """The wall clock of one machine, which its administrator or a time server may set at any moment."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self.wrong_by = 0

    def __call__(self) -> int:
        """Return what this machine takes for now."""
        return self._time.now + self.wrong_by

    def jump(self, milliseconds: int) -> None:
        """Set the clock forward, or back."""
        self.wrong_by += milliseconds
