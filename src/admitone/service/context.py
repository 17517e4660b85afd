"""What every route needs: the stores, the threads to ask them from, the door."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from starlette.responses import Response

from admitone.ledger.open import open_ledger
from admitone.ledger.port import Ledger
from admitone.results.port import TopAnswer
from admitone.service.access import Access, Caller, Role, needs
from admitone.service.asking import Asking
from admitone.service.door import Door
from admitone.service.pulse import Pulse
from admitone.service.redis_answers import KEPT_IN, RedisAnswers
from admitone.service.run_views import RunViews
from admitone.service.stores import Stores
from admitone.service.upkeep import Upkeep
from admitone.settings import Settings


class Context:
    """The parts of one service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.access = Access(settings)
        self.stores = Stores(settings)
        self.asking = Asking(settings.service.answer_timeout)
        self.runs = RunViews(self.stores, self.asking)
        self.door = Door(settings)
        self.pulse = Pulse(self.stores, self.asking, self.runs)
        self.upkeep = Upkeep(settings)
        self._redis = RedisAnswers(settings) if settings.results.kind == "redis" else None

    @cached_property
    def writing_ledger(self) -> Ledger:
        """Return the ledger for the audited actions, the only ones that may write here."""
        return open_ledger(self.settings)

    async def top(self, dimension: str, window: str, where: str | None, k: int | None) -> TopAnswer:
        """Return the heaviest items: from Redis where it is configured and answers, else from the store."""
        if self._redis is not None:
            found = await self._redis.top(dimension, window, where, k)
            if found is not None:
                return found
        stored = await self.asking.ask(
            lambda: self.stores.answers().top(dimension, window, where, k)
        )
        if self._redis is not None:
            stored["source"]["instead_of"] = KEPT_IN
        return stored

    def acted(self) -> None:
        """Note that somebody did something: what was found about runs no longer holds."""
        self.runs.forget()
        self.upkeep.wake()
        self.pulse.wake()

    def start(self) -> None:
        """Start what works in the background."""
        self.door.open()
        self.upkeep.start()

    async def close(self) -> None:
        """Stop it, deciding first what waits at the door."""
        await asyncio.to_thread(self.door.close)
        await asyncio.to_thread(self.upkeep.close)
        self.asking.close()
        if self._redis is not None:
            await self._redis.close()


def context_of(request: Request) -> Context:
    """Return the parts of the service that a request came to."""
    context: Context = request.app.state.context
    return context


Service = Annotated[Context, Depends(context_of)]
Reader = Annotated[Caller, Depends(needs(Role.READ))]
Operator = Annotated[Caller, Depends(needs(Role.OPERATE))]


def answer(document: Any) -> Response:
    """Return a document as it is on the command line."""
    return Response(orjson.dumps(document), media_type="application/json")
