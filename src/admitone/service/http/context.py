"""What every route needs: the stores, the threads to ask them from, the door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from admitone.ops.stores import Stores
from admitone.ops.tokens import Role
from admitone.results.documents import TopAnswer
from admitone.results.redis import KEPT_IN, RedisAnswers
from admitone.service.bounded_executor import BoundedExecutor
from admitone.service.door.door import Door
from admitone.service.door.maintenance import Maintenance
from admitone.service.http.authentication import Access, Caller, needs
from admitone.service.live.live_feed import LiveFeed
from admitone.service.live.run_views import RunViews
from admitone.settings import Settings


class ServiceContext:
    """The parts of one service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.access = Access(settings)
        self.stores = Stores(settings)
        self.executor = BoundedExecutor(settings.service.answer_timeout)
        self.runs = RunViews(self.stores, self.executor)
        self.door = Door(settings)
        self.live_feed = LiveFeed(self.stores, self.executor, self.runs)
        self.maintenance = Maintenance(settings)
        self._redis = RedisAnswers(settings) if settings.results.kind == "redis" else None

    async def top(self, dimension: str, window: str, where: str | None, k: int | None) -> TopAnswer:
        """Return the heaviest items: from Redis where it is configured and answers, else from the store."""
        if self._redis is not None:
            found = await self._redis.top(dimension, window, where, k)
            if found is not None:
                return found
        stored = await self.executor.run(
            lambda: self.stores.answers.top(dimension, window, where, k)
        )
        if self._redis is not None:
            stored["source"]["instead_of"] = KEPT_IN
        return stored

    def acted(self) -> None:
        """Note that an operator did something: what was found about runs no longer holds."""
        self.runs.forget()
        self.maintenance.wake()
        self.live_feed.wake()

    def start(self) -> None:
        """Start what works in the background."""
        self.door.open()
        self.maintenance.start()

    async def close(self) -> None:
        """Stop it, deciding first what waits at the door."""
        await asyncio.to_thread(self.door.close)
        await asyncio.to_thread(self.maintenance.close)
        self.executor.close()
        if self._redis is not None:
            await self._redis.close()


def context_of(request: Request) -> ServiceContext:
    """Return the parts of the service that a request came to."""
    context: ServiceContext = request.app.state.context
    return context


Service = Annotated[ServiceContext, Depends(context_of)]
Reader = Annotated[Caller, Depends(needs(Role.READ))]
Operator = Annotated[Caller, Depends(needs(Role.OPERATE))]


def author_of(service: ServiceContext, caller: Caller, named: str | None) -> str:
    """Return who does something: with tokens the token's name, which the client cannot choose."""
    return (named if service.access.is_open else None) or caller.name


class Question(BaseModel):
    """The parameters of a request; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")


async def ask(service: ServiceContext, work: Callable[..., Any], *args: Any) -> Response:
    """Ask the stores, and answer with the document that is found."""
    return answer(await service.executor.run(work, *args))


async def act(service: ServiceContext, work: Callable[[], Any]) -> Response:
    """Do what an operator wants, and answer with what came of it."""
    document = await service.executor.run(work)
    service.acted()
    return answer(document)


def answer(document: Any) -> Response:
    """Return a document as it is on the command line."""
    return Response(orjson.dumps(document), media_type="application/json")
