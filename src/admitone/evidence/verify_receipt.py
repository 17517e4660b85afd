"""Checks what admitone gives to strangers: the proof of one receipt, a whole exported run, or an answer.

    python verify_receipt.py PROOF.json [--key HEX]
    python verify_receipt.py EXPORTED_FOLDER [--key HEX]

Nothing but Python's standard library is used, and nothing is asked of anybody. A receipt is a leaf of a Merkle tree
(RFC 6962, SHA-256), whose root stands in a statement that was signed when the run was closed (Ed25519, RFC 8032).
Whether the key is that of whom you think, this cannot know: give the one you were told with --key, or compare it.

Exit code 0: everything holds; 7: something does not; 2: this is no proof.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Point = Any
"""X, Y, Z and T."""
Document = Any
"""As JSON has it."""

SIGNED_AS = b"admitone/closing/1\0"
VERDICTS = ("ADMITTED", "DUPLICATE", "REPLAYED", "QUARANTINED", "AMBIGUOUS")
P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)


class Wrong(Exception):
    """Something that does not hold."""


# Ed25519: points are (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z.


def x_of(y: int, sign: int) -> int:
    """Return the x of a point from its y and the parity of its x."""
    if y >= P:
        raise Wrong("the public key or the signature is no point")
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign):
        raise Wrong("the public key or the signature is no point")
    return P - x if x & 1 != sign else x


def point_from(data: bytes) -> Point:
    """Return the point that 32 bytes stand for."""
    number = int.from_bytes(data, "little")
    y = number & ((1 << 255) - 1)
    x = x_of(y, number >> 255)
    return x, y, 1, x * y % P


def added(one: Point, other: Point) -> Point:
    """Return the sum of two points."""
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c = 2 * one[3] * other[3] * D % P
    d = 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number: int, point: Point) -> Point:
    """Return a multiple of a point."""
    found = (0, 1, 1, 0)
    while number:
        if number & 1:
            found = added(found, point)
        point = added(point, point)
        number >>= 1
    return found


def same(one: Point, other: Point) -> bool:
    """Tell whether two points are one."""
    across = (one[axis] * other[2] - other[axis] * one[2] for axis in (0, 1))
    return not any(difference % P for difference in across)


BASE_Y = 4 * pow(5, P - 2, P) % P
BASE = point_from(BASE_Y.to_bytes(32, "little"))


def check_signature(public_key: bytes, signature: bytes, message: bytes) -> None:
    """Raise unless a key signed a message."""
    if len(public_key) != 32 or len(signature) != 64:
        raise Wrong("the public key or the signature has another length")
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    if s >= Q:
        raise Wrong("the signature is none")
    k = int.from_bytes(hashlib.sha512(r + public_key + message).digest(), "little") % Q
    if not same(times(s, BASE), added(point_from(r), times(k, point_from(public_key)))):
        raise Wrong("the statement is not what the key signed")


# Receipts.


def identity_of(run: str, event_class: str, event_id: str) -> str:
    """Return who an event is: a hash over its run, class and id."""
    fields = "".join(f"{len(field)}:{field}" for field in (run, event_class, event_id))
    return hashlib.sha256(b"admitone/identity/1\0" + fields.encode()).hexdigest()


def leaf_of(receipt: Document, version: int) -> bytes:
    """Return the bytes of a receipt that the tree vouches for."""
    source, bus = receipt["source"], receipt["bus"]
    hashes = [hash_bytes(receipt[name]) for name in ("identity", "payload_hash", "published_hash")]
    leaf = b"".join(hashes)
    leaf += struct.pack(">qiq", source["producer_id"], source["partition"], source["offset"])
    leaf += bytes([VERDICTS.index(receipt["verdict"])])
    if bus is None:
        leaf += struct.pack(">iq", -1, -1) + bytes(32)
    else:
        offset = -1 if bus["offset"] is None else bus["offset"]
        leaf += struct.pack(">iq", bus["partition"], offset)
        leaf += hashlib.sha256(bus["topic"].encode()).digest()
    if version >= 2:
        leaf += hash_bytes(receipt["rules"])
        moments = (receipt[name] for name in ("event_time", "decided_at", "published_at"))
        leaf += struct.pack(">qqq", *(-1 if moment is None else moment for moment in moments))
    return leaf


def hash_bytes(text: str | None) -> bytes:
    """Return a hash, zeros where there is none."""
    return bytes(32) if text is None else bytes.fromhex(text)


def leaf_hash(leaf: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node over two others."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def check_names(receipt: Document) -> None:
    """Raise where an event's names do not give its identity; a record that is known by a key has no such names."""
    names = receipt["run"], receipt["event_class"], receipt["event_id"]
    if receipt["named_by"] not in ("envelope", "key"):
        raise Wrong("it is not said how the event is named")
    if receipt["named_by"] == "envelope" and identity_of(*names) != receipt["identity"]:
        raise Wrong("the receipt's identity is not that of its run, class and event id")


def root_of(leaves: Iterable[bytes]) -> tuple[bytes, int]:
    """Return the root over leaves that come one after the other, and how many there were."""
    parts: list[tuple[int, bytes]] = []
    size = 0
    for leaf in leaves:
        size += 1
        height, found = 0, leaf
        while parts and parts[-1][0] == height:
            found = node_hash(parts.pop()[1], found)
            height += 1
        parts.append((height, found))
    if not parts:
        return hashlib.sha256(b"").digest(), 0
    found = parts.pop()[1]
    while parts:
        found = node_hash(parts.pop()[1], found)
    return found, size


def check_closing(closing: Document, key: str | None) -> Document:
    """Raise unless a closing is what was signed, with the key that was expected; return its statement."""
    statement, seal = closing["statement"], closing["seal"]
    if seal is None:
        if key is not None or statement["signed"]:
            raise Wrong("the closing is not signed")
        return statement
    if seal["algorithm"] != "ed25519":
        raise Wrong(f"the closing is signed with {seal['algorithm']}")
    if key is not None and seal["public_key"] != key.lower():
        raise Wrong(f"the closing is signed with {seal['public_key']}, not with the key you gave")
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    public_key, signature = bytes.fromhex(seal["public_key"]), bytes.fromhex(seal["signature"])
    check_signature(public_key, signature, SIGNED_AS + text.encode())
    return statement


def check_proof(proof: Document, key: str | None) -> list[str]:
    """Check the proof of one receipt; return what holds."""
    statement = check_closing(proof["closing"], key)
    receipt = proof["receipt"]
    check_names(receipt)
    if receipt["run"] != statement["run_id"]:
        raise Wrong("the receipt is of another run than the statement")
    reached = leaf_hash(leaf_of(receipt, statement["leaf"]))
    for step in proof["path"]:
        neighbour = bytes.fromhex(step["hash"])
        reached = node_hash(neighbour, reached) if step["left"] else node_hash(reached, neighbour)
    if reached.hex() != statement["merkle_root"]:
        raise Wrong("the receipt is not in the tree that was signed")
    named = (
        ""
        if receipt["named_by"] == "envelope"
        else " (known by its key: its id is not vouched for)"
    )
    return [
        f"event {receipt['event_id']} was {receipt['verdict']}{named}",
        *said_of(statement, proof["closing"]),
    ]


def check_export(folder: Path, key: str | None) -> list[str]:
    """Check an exported run; return what holds."""
    closing = json.loads((folder / "seal.json").read_bytes())
    statement = check_closing(closing, key)
    artifact = (folder / "closure.json").read_bytes()
    if hashlib.sha256(artifact).hexdigest() != statement["artifact"]:
        raise Wrong("closure.json is not the artifact that was signed")
    root, size = root_of(exported_leaves(folder / "receipts.jsonl.gz", statement))
    if (root.hex(), size) != (statement["merkle_root"], statement["receipts"]):
        raise Wrong(f"the {size} receipts are not the {statement['receipts']} that were signed")
    return [f"{size} receipts are those of the run", *said_of(statement, closing)]


def check_answer(proof: Document) -> list[str]:
    """Check that the recount that came with an answer lies within its bounds; return what holds."""
    answer, again = proof["answer"], proof["recount"]
    if [line["item"] for line in answer["items"]] != [line["item"] for line in again]:
        raise Wrong("other items were counted again than the answer lists")
    for number, line in enumerate(answer["items"]):
        exact = again[number]
        if not line["lower"] <= exact["count"] <= line["upper"]:
            raise Wrong(f"{line['item']} was counted {exact['count']} times, outside its bounds")
    if proof["recounted_total"] != answer["total"]:
        raise Wrong("all items together were counted otherwise")
    return [
        f"{len(again)} items of {answer['dimension']} in {answer['window']} lie within their bounds",
        f"counted under rules {', '.join(proof['rules'])}; the archive they were counted from is not checked here",
    ]


def exported_leaves(file: Path, statement: Document) -> Iterator[bytes]:
    """Yield the hashes of exported receipts, in their order."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            receipt = json.loads(line)
            check_names(receipt)
            if receipt["run"] != statement["run_id"]:
                raise Wrong("a receipt is of another run than the statement")
            yield leaf_hash(leaf_of(receipt, statement["leaf"]))


def said_of(statement: Document, closing: Document) -> list[str]:
    """Return what is said of a closing."""
    seal = closing["seal"]
    signed = "NOT SIGNED" if seal is None else f"signed with {seal['public_key']}"
    return [
        f"run {statement['run_id']} was closed by {statement['author'] or 'nobody named'},"
        f" closing {statement['number']} of ledger {statement['ledger']}",
        signed,
    ]


def main() -> None:
    """Check what is named on the command line."""
    parser = argparse.ArgumentParser(
        description="Checks the proof of a receipt, or an exported run."
    )
    parser.add_argument("what", type=Path, help="a proof, or the folder of an exported run")
    parser.add_argument("--key", help="the public key that must have signed, in hexadecimal digits")
    given = parser.parse_args()
    try:
        if given.what.is_dir():
            lines = check_export(given.what, given.key)
        else:
            proof = json.loads(given.what.read_bytes())
            lines = check_answer(proof) if "answer" in proof else check_proof(proof, given.key)
    except Wrong as wrong:
        print(f"WRONG: {wrong}")
        sys.exit(7)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        print(f"this cannot be read as a proof: {type(error).__name__}: {error}")
        sys.exit(2)
    print("\n".join(["holds", *lines]))


if __name__ == "__main__":
    main()
