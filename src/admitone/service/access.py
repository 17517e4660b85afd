"""Who asks, and what they may do: bearer tokens, of which only hashes are kept (SEC-3).

    read      every question
    operate   questions, and the actions that leave a trace: release, discard, close
    ingest    deliver events, nothing else

Where no token is configured the service only listens on this machine, and whoever is there may do everything.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from starlette.requests import Request

from admitone.service.problems import Refused
from admitone.settings import Settings

_PREFIX: Final = "admitone_"
_SCHEME: Final = "bearer"


class Role(StrEnum):
    """What a token is for."""

    READ = "read"
    OPERATE = "operate"
    INGEST = "ingest"


_ALLOWED: Final[dict[Role, frozenset[Role]]] = {
    Role.READ: frozenset({Role.READ}),
    Role.OPERATE: frozenset({Role.READ, Role.OPERATE}),
    Role.INGEST: frozenset({Role.INGEST}),
}


class Caller(NamedTuple):
    """Somebody who may ask."""

    name: str
    roles: frozenset[Role]


SOMEBODY_HERE: Final = Caller("local", frozenset(Role))


class Access:
    """Knows the hashes of the tokens; denies what no token allows."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [
            (bytes.fromhex(token.hash.removeprefix("sha256:")), Caller(token.name, _ALLOWED[Role(token.role)]))
            for token in settings.access.tokens
        ]  # fmt: skip

    @property
    def is_open(self) -> bool:
        """Tell whether whoever is on this machine may do everything."""
        return not self._tokens

    def caller(self, authorization: str | None) -> Caller | None:
        """Return whom an `Authorization` header names."""
        if self.is_open:
            return SOMEBODY_HERE
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME:
            return None
        found, given = None, hashlib.sha256(token.strip().encode()).digest()
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


def new_token() -> tuple[str, str]:
    """Return a token and the hash that is kept of it.

    It has 256 random bits: nobody can guess it from a hash that is quick to compute.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    return token, f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
