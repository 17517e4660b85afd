"""What is left of an error that came through Spark, and what it means for us."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from admitone.core import errors
from admitone.core.errors import (
    AdmitoneError,
    ConfigurationError,
    IntegrityError,
    ServiceUnreachable,
)

_CODED: Final = re.compile(r"\[([A-Z_]+)\] (.+?)(?: Try: ([^\n]*))?(?:\n|$)")
_BY_CODE: Final = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, AdmitoneError)
}
_DATA_LOSS: Final = re.compile(
    r"Some data may have been lost because .+?Reason:\s*(.+?)(?:\. |\.?\n|\.?$| SQLSTATE)", re.S
)
_KAFKA: Final = re.compile(
    r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+(?:Exception|Error)): ([^\n]+)"
)
_DENIED: Final = re.compile(r"Authentication|Authorization|Ssl|Config|Login")
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:\s.*\n)*(\S[^\n]*)")
_CAUSE: Final = re.compile(r"^Caused by: ([^\n]+)", re.M)
_SILENCE: Final = "no reason was given"
_INTERRUPTED: Final = re.compile(r"Interrupted(?:IO)?Exception|ClosedByInterrupt|JOB_CANCELLED")


def explained(error: BaseException | None) -> AdmitoneError:
    """Return the error a worker or a source raised, read back from the text that is left of it."""
    text = str(error or "").strip()
    found = [match for match in _CODED.finditer(text) if match[1] in _BY_CODE]
    if found:
        code, problem, remedy = found[-1].groups()
        return _BY_CODE[code](problem, remedy or "")
    lost = _DATA_LOSS.search(text)
    if lost:
        return IntegrityError(
            f"Records that were not read yet are gone from Kafka: {lost[1]}.",
            "restore them and lengthen the topic's retention; or start a pipeline under another name to go on"
            " without them",
        )
    silent = _KAFKA.search(text)
    if silent and _DENIED.search(silent[1]):
        return ConfigurationError(
            f"Kafka refuses Spark's reader: {silent[1]}: {silent[2].rstrip('.')}.",
            "check [transport.kafka], the certificates and what this user may do",
        )
    if silent:
        return ServiceUnreachable(
            f"Kafka does not answer Spark's reader: {silent[1]}: {silent[2].rstrip('.')}.",
            "check [transport.kafka] bootstrap and that the brokers run, then run again",
        )
    causes = _RAISED.findall(text) or _CAUSE.findall(text) or text.splitlines() or [_SILENCE]
    return AdmitoneError(f"A query ended unexpectedly: {causes[-1][:300]}", "see data/spark.log")


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Let an error of a Spark action leave a batch as one of ours.

    Spark searches the text of what a batch raises with a pattern that overflows its stack when the text is as
    long as a Java stack trace; then nobody hears of the error. Only an interruption must stay as it is.
    """
    try:
        yield
    except AdmitoneError:
        raise
    except Exception as error:
        if _INTERRUPTED.search(str(error)):
            raise
        raise explained(error) from None
