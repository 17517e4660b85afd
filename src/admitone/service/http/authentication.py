"""Who asks, and what they may do: bearer tokens, of which only hashes are kept (SEC-3).

    read      every question
    operate   questions, and the actions that leave a trace: release, discard, close
    ingest    deliver events, nothing else

Where no token is configured the service only listens on this machine, and every client there may do everything.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from starlette.requests import Request

from admitone.ops.tokens import Role, hash_of
from admitone.service.http.problems import Refused
from admitone.settings import Settings

_SCHEME: Final = "bearer"


_ALLOWED: Final[dict[Role, frozenset[Role]]] = {
    Role.READ: frozenset({Role.READ}),
    Role.OPERATE: frozenset({Role.READ, Role.OPERATE}),
    Role.INGEST: frozenset({Role.INGEST}),
}


class Caller(NamedTuple):
    """A client that may ask."""

    name: str
    roles: frozenset[Role]


LOCAL_CALLER: Final = Caller("local", frozenset(Role))


class Access:
    """Knows the hashes of the tokens; denies what no token allows."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [
            (token.hash, Caller(token.name, _ALLOWED[Role(token.role)]))
            for token in settings.access.tokens
        ]  # fmt: skip

    @property
    def is_open(self) -> bool:
        """Tell whether every client on this machine may do everything."""
        return not self._tokens

    def caller(self, authorization: str | None) -> Caller | None:
        """Return whom an `Authorization` header names."""
        if self.is_open:
            return LOCAL_CALLER
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME:
            return None
        found, given = None, hash_of(token.strip())
        # All are compared, whichever fits, so that the time taken says nothing.
        for known, caller in self._tokens:
            if hmac.compare_digest(known, given):
                found = caller
        return found

    def require(self, request: Request, role: Role) -> Caller:
        """Return who asks, or refuse when they may not."""
        caller = self.caller(request.headers.get("authorization"))
        if caller is None:
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                "UNAUTHORIZED",
                "This needs a token.",
                "send Authorization: Bearer TOKEN; admitone token makes one",
                {"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = caller
        if role not in caller.roles:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "FORBIDDEN",
                f"Token {caller.name!r} is not for this: it needs the role {role}.",
                "use a token of that role",
            )
        return caller


def needs(role: Role) -> Callable[[Request], Caller]:
    """Return a dependency that lets only callers of a role through."""

    def check(request: Request) -> Caller:
        access: Access = request.app.state.context.access
        return access.require(request, role)

    return check
