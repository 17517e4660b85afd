"""The reference page of decisions, made from the tables the code executes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from admitone.core.decisions import (
    ADMISSION_OF_BLOCK,
    BLOCK_TRANSITIONS,
    JUDGEMENTS,
    AdmissionState,
    BlockState,
    Meaning,
    Reason,
    Verdict,
    meaning_of,
)


def decisions_page() -> str:
    """Return docs/reference/decisions.md."""
    return "\n".join(
        [
            "# Decisions",
            "",
            "Made from `core/decisions.py` by `python -m scripts.decisions_page`; a test keeps it so.",
            "",
            "## Verdicts",
            "",
            _listed(Verdict),
            "",
            "## Reasons",
            "",
            _listed(Reason),
            "",
            "## States of a block, and what they mean for its identities",
            "",
            *_table(
                ("state", "may become", "its identities are"),
                (
                    (
                        f"`{state}`",
                        ", ".join(f"`{b}`" for a, b in sorted(BLOCK_TRANSITIONS) if a is state)
                        or "final",
                        f"`{ADMISSION_OF_BLOCK[state]}`",
                    )
                    for state in BlockState
                ),
            ),
            "",
            "## What an existing identity means for the next delivery",
            "",
            *_table(
                ("state of the identity", "same payload hash", "other payload hash"),
                (
                    (label, _judged(state, expired, True), _judged(state, expired, False))
                    for label, state, expired in _rows()
                ),
            ),
            "",
        ]
    )


def _listed(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), 120)


def _rows() -> Iterable[tuple[str, AdmissionState, bool]]:
    for state in AdmissionState:
        yield f"`{state}`", state, False
    yield "`ADMITTED`, expired from the window", AdmissionState.ADMITTED, True


def _judged(state: AdmissionState, expired: bool, same_hash: bool) -> str:
    meaning = meaning_of(state, expired=expired, same_hash=same_hash)
    if meaning is Meaning.WAIT:
        return "not decided yet: the block ends before it"
    judgement = JUDGEMENTS[meaning]
    reason = f", `{judgement.reason}`" if judgement.reason else ""
    return f"{meaning}: `{judgement.verdict}`{reason}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


if __name__ == "__main__":
    print(decisions_page(), end="")
