"""The service's log: one JSON document for each line, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import orjson

from admitone.core.moments import iso

_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "color_message",
}


class JsonLines(logging.Formatter):
    """Spells a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        document: dict[str, Any] = {
            "at": iso(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in _USUAL},
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


def log_to_stderr() -> None:
    """Let everything this process says go to stderr, line by line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
