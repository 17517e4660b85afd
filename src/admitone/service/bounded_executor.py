"""Threads for what blocks, such as questions to stores; so many wait, and so long, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from admitone.core.errors import AdmitoneError

T = TypeVar("T")

OUR_MISTAKE: Final = "The service made a mistake; its log says which."
"""What is said of an error that no client can act on."""
_THREADS: Final = 8
_WAITING: Final = 200


class Busy(AdmitoneError):
    """More is waiting than may; the same can be asked again a little later."""

    code = "BUSY"

    def __init__(self, problem: str, remedy: str = "send it again a little later") -> None:
        super().__init__(problem, remedy)


class TimedOut(AdmitoneError):
    """What was asked for was not there in time."""

    code = "UNAVAILABLE"


class BoundedExecutor:
    """A few threads; each has connections of its own to the stores."""

    def __init__(self, timeout_ms: int) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="executor")
        self._timeout_s = timeout_ms / 1_000
        self._waiting = 0

    async def run(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        """Return what the work returns; raise `Busy` or `TimedOut` where too much waits or it takes too long."""
        if self._waiting >= _WAITING:
            raise Busy("Too many questions are waiting for an answer.")
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(work, *args, **more)
        )
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._timeout_s)
        except TimeoutError:
            raise TimedOut(
                f"There was no answer within {self._timeout_s:g} seconds.",
                "ask for less, or raise answer_timeout in [service]",
            ) from None

    def close(self) -> None:
        """Let the threads end once they are done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # taken, so that an error no client waits for any more is no warning
