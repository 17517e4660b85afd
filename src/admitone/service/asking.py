"""Questions to stores, which block, asked from threads of their own with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from admitone.service.problems import busy, unavailable

T = TypeVar("T")

_THREADS: Final = 8
_WAITING: Final = 200


class Asking:
    """A few threads for blocking questions; each has connections of its own to the stores."""

    def __init__(self, timeout_ms: int) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ask")
        self._timeout_s = timeout_ms / 1_000
        self._asked = 0

    async def ask(self, question: Callable[..., T], *args: Any, **more: Any) -> T:
        """Return what a question returns, unless too many wait or it takes too long."""
        if self._asked >= _WAITING:
            raise busy("Too many questions are waiting for an answer.")
        self._asked += 1
        answer = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(question, *args, **more)
        )
        answer.add_done_callback(self._answered)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), self._timeout_s)
        except TimeoutError:
            raise unavailable(
                f"There was no answer within {self._timeout_s:g} seconds.",
                "ask for less, or raise answer_timeout in [service]",
            ) from None

    def close(self) -> None:
        """Let the threads end once they are done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        self._asked -= 1
        if not answer.cancelled():
            answer.exception()  # asked for, so that an answer nobody waits for any more is no warning
