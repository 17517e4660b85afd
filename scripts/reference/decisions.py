"""Verdicts, reasons and states, from the tables the code executes."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.reference.markdown import names, paragraph, table

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


def verdicts() -> str:
    """Return the verdicts."""
    return paragraph(names(Verdict))


def reasons() -> str:
    """Return the closed list of reason codes."""
    return paragraph(names(Reason))


def states() -> str:
    """Return the states of a block, what each may become, and what it means for its identities."""
    return table(
        ("state", "may become", "its identities are"),
        (
            (
                f"`{state}`",
                names(b for a, b in sorted(BLOCK_TRANSITIONS) if a is state) or "final",
                f"`{ADMISSION_OF_BLOCK[state]}`",
            )
            for state in BlockState
        ),
    )


def judgements() -> str:
    """Return what an identity that is there already means for the next delivery."""
    return table(
        ("state of the identity", "same payload hash", "other payload hash"),
        (
            (label, _judged(state, expired, True), _judged(state, expired, False))
            for label, state, expired in _rows()
        ),
    )


def _rows() -> Iterator[tuple[str, AdmissionState, bool]]:
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
