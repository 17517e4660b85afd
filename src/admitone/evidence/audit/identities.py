"""Who an event is and what it carries, computed again from its envelope."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from admitone.core.canonical import Refused, canonical_json, parse
from admitone.core.identity import identity_of, names_of
from admitone.core.keys import Key
from admitone.core.records import labelled
from admitone.core.wire import naming_headers, said_outside
from admitone.ledger.columns import fixed_bytes
from admitone.ledger.model import ADMISSION_STORE, Source
from admitone.ledger.port import LedgerReader


class Recomputed(NamedTuple):
    """What envelopes say, line by line; an identity and a hash are empty where an envelope says none."""

    identities: list[bytes]
    hashes: list[bytes]
    envelopes: list[Any]

    def differing(self, identities: pa.Array, hashes: pa.Array) -> int:
        """Return how many have another identity or payload hash than the ledger says."""
        # Nearly always everything is as it was, and two comparisons of all the bytes say so.
        if (b"".join(self.identities), b"".join(self.hashes)) == (_joined(identities), _joined(hashes)):  # fmt: skip
            return 0
        said = zip(identities.to_pylist(), hashes.to_pylist(), strict=True)
        found = zip(self.identities, self.hashes, strict=True)
        return sum(one != other for one, other in zip(found, said, strict=True))


def recomputed(run_id: str, values: pa.Array, headers: pa.Array) -> Recomputed:
    """Return who envelopes of the admission boundary are and what they carry."""
    found, outside = Recomputed([], [], []), naming_headers(headers)
    for row, value in enumerate(values.to_pylist()):
        identity, digest, envelope = _of_envelope(value, outside.get(row, {}), run_id)
        found.identities.append(identity)
        found.hashes.append(digest)
        found.envelopes.append(envelope)
    return found


def _of_envelope(
    value: bytes, headers: Mapping[str, bytes], run_id: str
) -> tuple[bytes, bytes, Any]:
    envelope = None
    try:
        envelope, plain = parse(value)
        metadata, payload = envelope["metadata"], envelope["payload"]
        who = names_of(metadata, said_outside(headers, run_id))
        digest = hashlib.sha256(canonical_json(payload, plain)).digest()
        return identity_of(*who), digest, envelope
    except (Refused, KeyError, TypeError, AttributeError):
        return b"", b"", envelope


def recomputed_records(classes: pa.Array, values: pa.Array, headers: pa.Array) -> Recomputed:
    """Return the keys of records of a dedup pipeline; the payload hash is the identity again.

    What their keys are made by stands in the place of a class.
    """
    outside = naming_headers(headers)
    pairs = zip(classes.to_pylist(), values.to_pylist(), strict=True)
    identities = [_of_record(*pair, outside.get(row, {})) for row, pair in enumerate(pairs)]
    return Recomputed(identities, identities, [None] * len(identities))


def _of_record(label: str, value: bytes, headers: Mapping[str, bytes]) -> bytes:
    try:
        rule, default_run = labelled(label)
        key = rule.read(value, said_outside(headers, default_run))
    except (ValueError, TypeError):
        return b""
    return key.identity if isinstance(key, Key) else b""


def wrong_keys(classes: pa.Array, texts: pa.Array, said: pa.Array) -> int:
    """Return how many identities of a dedup pipeline are missing, or not what their keys' texts give.

    A text that was too long stands there shortened, and bears out nothing.
    """
    wrong = 0
    for label, text, identity in zip(*(c.to_pylist() for c in (classes, texts, said)), strict=True):
        try:
            found = labelled(label)[0].identity_of_text(text)
        except (ValueError, TypeError, AttributeError):
            found = b""
        wrong += identity is None or (found is not None and found != identity)
    return wrong


def keyed_sources(ledger: LedgerReader) -> frozenset[Source]:
    """Return the sources of dedup pipelines: who their records are is said by keys."""
    return frozenset(info.source for info in ledger.sources() if info.store != ADMISSION_STORE)


def wrong_identities(run_id: str, classes: pa.Array, event_ids: pa.Array, said: pa.Array) -> int:
    """Return how many identities are missing, or not what run, class and event id give."""
    found = [
        b""
        if event_class is None or event_id is None
        else identity_of(run_id, event_class, event_id)
        for event_class, event_id in zip(classes.to_pylist(), event_ids.to_pylist(), strict=True)
    ]
    if not said.null_count and b"".join(found) == _joined(said):
        return 0
    return sum(one != other for one, other in zip(found, said.to_pylist(), strict=True))


def _joined(column: pa.Array) -> bytes:
    return bytes(fixed_bytes(column.drop_null()))
