"""Shrinks a history that broke a promise: steps are left out while it still breaks the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from admitone.simulation.drawn_history import Told

Run = Callable[[Sequence[int]], Told]
"""Lets the chosen steps of a history happen."""


def shrunk(found: Told, run: Run) -> Told:
    """Return a history with as few of the steps as it takes: halves are left out first, single ones last."""
    broken = _broken(found)
    size = max(len(found.steps) // 2, 1)
    while True:
        smaller = _without_some(found, run, size, broken)
        if smaller is not None:
            found = smaller
        elif size > 1:
            size //= 2
        else:
            return found


def _without_some(found: Told, run: Run, size: int, broken: set[tuple[str, int]]) -> Told | None:
    for start in range(0, len(found.steps), size):
        tried = run([*found.steps[:start], *found.steps[start + size :]])
        if _broken(tried) & broken:
            return tried
    return None


def _broken(found: Told) -> set[tuple[str, int]]:
    return {(violation.kind, violation.promise) for violation in found.violations}
