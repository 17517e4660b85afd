"""What every route needs: the stores, the threads to ask them from, the door."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from starlette.responses import Response

from admitone.ledger.open import open_ledger
from admitone.ledger.port import Ledger
from admitone.service.access import Access, Caller, Role, needs
from admitone.service.asking import Asking
from admitone.service.door import Door
from admitone.service.pulse import Pulse
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

    @cached_property
    def writing_ledger(self) -> Ledger:
        """Return the ledger for the audited actions, the only ones that may write here."""
        return open_ledger(self.settings)

    def acted(self) -> None:
        """Note that somebody did something: what was found about runs no longer holds."""
        self.runs.forget()
        self.upkeep.wake()
        self.pulse.wake()

    def start(self) -> None:
        """Start what works in the background."""
        self.door.open()
        self.upkeep.start()

    def close(self) -> None:
        """Stop it, deciding first what waits at the door."""
        self.door.close()
        self.upkeep.close()
        self.asking.close()


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
