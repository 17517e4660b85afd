"""What vouches for a closing outside the ledger: a signed statement, chained to the one before.

A statement names the artifact and the root of the receipts by their hashes, and the statement before it by its own. So
whoever keeps the newest hash, the *head*, holds all closings to what they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import orjson
from typing_extensions import TypedDict

from admitone.evidence.audit.artifact import Artifact, to_bytes
from admitone.governance.key_ring import Key, KeyRing, Signer, is_signed
from admitone.ledger.model import ChainedClosing
from admitone.ledger.port import LedgerReader

STATEMENT_VERSION: Final = 1
_DOMAIN: Final = b"admitone/closing/1\0"
ED25519: Final = "ed25519"


class Statement(TypedDict):
    """What is signed: canonical JSON."""

    version: int
    ledger: str
    number: int
    previous: str | None
    run_id: str
    closed_at: int
    author: str
    artifact: str
    merkle_root: str
    receipts: int
    leaf: int
    signed: bool


class Seal(TypedDict):
    """Who signed a statement."""

    algorithm: Literal["ed25519"]
    key: str
    public_key: str
    signature: str


class SealedClosing(TypedDict):
    """A statement and its seal, as they are written beside the artifact and given to strangers."""

    statement: Statement
    seal: Seal | None


def head_of(statement: bytes) -> bytes:
    """Return the hash by which the next statement names this one."""
    return hashlib.sha256(statement).digest()


def next_closing(ledger: LedgerReader, artifact: Artifact, signer: Signer | None) -> ChainedClosing:
    """Return the closing that follows the last one of a ledger."""
    chain = ledger.closings()
    last = chain[-1] if chain else None
    statement = statement_of(
        artifact,
        ledger.ledger_id(),
        last.number + 1 if last else 1,
        last.head.hex() if last else None,
        signed=signer is not None,
    )
    data = orjson.dumps(statement, option=orjson.OPT_SORT_KEYS)
    seal = None
    if signer is not None:
        made: Seal = {
            "algorithm": ED25519,
            "key": signer.key.id,
            "public_key": signer.key.public,
            "signature": signer.sign(_DOMAIN + data).hex(),
        }
        seal = orjson.dumps(made, option=orjson.OPT_SORT_KEYS).decode()
    return ChainedClosing(statement["number"], artifact["run_id"], data, seal, head_of(data))


def statement_of(
    artifact: Artifact, ledger_id: str, number: int, previous: str | None, *, signed: bool
) -> Statement:
    """Return what is said of an artifact in its place in the chain."""
    return {
        "version": STATEMENT_VERSION,
        "ledger": ledger_id,
        "number": number,
        "previous": previous,
        "run_id": artifact["run_id"],
        "closed_at": artifact["closed_at"],
        "author": artifact["author"],
        "artifact": hashlib.sha256(to_bytes(artifact)).hexdigest(),
        "merkle_root": artifact["merkle_root"],
        "receipts": artifact["receipts"],
        "leaf": artifact["leaf"],
        "signed": signed,
    }


def sealed_bytes(closing: ChainedClosing) -> bytes:
    """Return a closing as it is written beside the artifact."""
    return orjson.dumps(sealed_document(closing), option=orjson.OPT_SORT_KEYS)


def sealed_document(closing: ChainedClosing) -> SealedClosing:
    """Return a closing as strangers get it."""
    return {
        "statement": orjson.loads(closing.statement),
        "seal": None if closing.seal is None else orjson.loads(closing.seal),
    }


def wrong_in_chain(chain: Sequence[ChainedClosing], ring: KeyRing, ledger_id: str) -> Iterator[str]:
    """Yield what is wrong with a chain of closings: numbers, links, heads, seals."""
    keys = {key.id: key for key in ring.known()}
    previous: bytes | None = None
    for number, closing in enumerate(chain, 1):
        where = f"closing {closing.number}"
        if closing.number != number:
            yield f"closing {number} is missing before {closing.number}"
            return
        said = _statement(closing.statement)
        if said is None or head_of(closing.statement) != closing.head:
            yield f"{where} is not the statement that its head names"
            return
        if said["number"] != number or said["previous"] != (previous.hex() if previous else None):
            yield f"{where} does not follow the one before it"
        if said["ledger"] != ledger_id:
            yield f"{where} is of another ledger"
        if said["run_id"] != closing.run_id:
            yield f"{where} is of run {said['run_id']!r}, not of {closing.run_id!r}"
        yield from _wrong_seal(where, closing, said, keys)
        previous = closing.head


def _wrong_seal(
    where: str, closing: ChainedClosing, said: Statement, keys: Mapping[str, Key]
) -> Iterator[str]:
    if not said["signed"]:
        if closing.seal is not None:
            yield f"{where} says that it is not signed, and has a seal"
        return
    seal = _parsed(closing.seal or "")
    if seal is None:
        yield f"{where} is to be signed, and has no seal"
        return
    key = keys.get(str(seal.get("key")))
    if key is None:
        yield f"{where} is signed with key {seal.get('key')}, which the key ring does not know"
        return
    try:
        signature = bytes.fromhex(str(seal.get("signature")))
    except ValueError:
        signature = b""
    whole = seal == {
        "algorithm": ED25519, "key": key.id, "public_key": key.public, "signature": signature.hex()
    }  # fmt: skip
    if not whole or not is_signed(key.public, signature, _DOMAIN + closing.statement):
        yield f"{where} is not what key {key.id} signed"
    elif key.retired_at is not None and said["closed_at"] > key.retired_at:
        yield f"{where} is signed with key {key.id} after that was retired"


def _statement(data: bytes) -> Statement | None:
    said = _parsed(data)
    if said is None or set(said) != set(Statement.__annotations__):
        return None
    return (
        cast(Statement, said) if orjson.dumps(said, option=orjson.OPT_SORT_KEYS) == data else None
    )


def _parsed(data: bytes | str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
