"""An evidence store in memory, which settings can also name by a URL, as they name any other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import pyarrow.compute as pc

from admitone.core.decisions import Reason
from admitone.core.errors import NotFound
from admitone.evidence.evidence_file import from_parquet
from admitone.evidence.evidence_rows import RESOLUTIONS
from admitone.simulation.ledger import Call, at_once

PROTOCOL = "simulated"
_numbers = count(1)
_stores: WeakValueDictionary[int, SimulatedEvidence] = WeakValueDictionary()


class SimulatedEvidence:
    """An `EvidenceStore` in memory; every object is written or read in one call."""

    def __init__(self, call: Call[Any] = at_once) -> None:
        self._call = call
        self._objects: dict[str, bytes] = {}

    def write(self, path: str, data: bytes) -> None:
        """Make an object durable under its path, in the place of one that is there."""
        self._call("evidence.write", lambda: self._objects.update({path: bytes(data)}))

    def read(self, path: str) -> bytes:
        """Return an object's bytes, or raise `NotFound`."""
        found: bytes | None = self._call("evidence.read", lambda: self._objects.get(path))
        if found is None:
            raise NotFound(f"There is no evidence {path}.")
        return found

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all objects below a prefix, in order."""
        below = prefix.rstrip("/") + "/"
        found = self._call(
            "evidence.list", lambda: [p for p in self._objects if p.startswith(below)]
        )
        return sorted(found)

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""
        self._call("evidence.delete", lambda: self._objects.pop(path, None))

    # What is seen of it from outside.

    def checksums(self) -> frozenset[bytes]:
        """Return what every object holds, by its hash."""
        return frozenset(hashlib.sha256(data).digest() for data in self._objects.values())

    def given_up(self) -> Iterator[tuple[str, str]]:
        """Yield run and event of every identity that an operator gave up."""
        for path, data in self._objects.items():
            if f"/{RESOLUTIONS}/" in path:
                rows = from_parquet(data, RESOLUTIONS)
                chosen = rows.filter(pc.equal(rows["reason"], str(Reason.IDENTITY_RETRACTED)))
                run = path.partition("runs/")[2].partition("/")[0]
                for event in chosen["event_id"].to_pylist():
                    yield run, event


def url_of(store: SimulatedEvidence) -> str:
    """Return a URL by which this process finds the store."""
    _known_to_fsspec()
    number = next(_numbers)
    _stores[number] = store
    return f"{PROTOCOL}://{number}"


@cache
def _known_to_fsspec() -> None:
    """Let fsspec know what is behind such URLs; imported here, because it takes long and few need it."""
    import fsspec

    class FileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
        """The objects of every store that is in use."""

        protocol = PROTOCOL
        cachable = False

        def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
            store, name = _place(path)
            store.write(name, value)

        def cat_file(self, path: str, **options: Any) -> bytes:
            store, name = _place(path)
            try:
                return store.read(name)
            except NotFound:
                raise FileNotFoundError(path) from None

        def find(self, path: str, **options: Any) -> list[str]:
            store, name = _place(path)
            number = path.partition("/")[0]
            return [f"{number}/{found}" for found in store.list(name)]

        def rm_file(self, path: str) -> None:
            store, name = _place(path)
            store.delete(name)

    fsspec.register_implementation(PROTOCOL, FileSystem)


def _place(path: str) -> tuple[SimulatedEvidence, str]:
    number, _, name = path.partition("/")
    return _stores[int(number)], name
