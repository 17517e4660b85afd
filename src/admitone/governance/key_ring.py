"""Keys with a purpose: made, rotated and retired; what they signed can be checked for good.

    keys/ring.json    every key there ever was: its id, purpose and public half, when it was made and retired
    keys/ID.key       the private half, PEM, for its owner only; one that came from elsewhere is not kept here

Retiring a signing key stops it from signing; nothing that it signed before becomes doubtful.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from typing_extensions import TypedDict

from admitone.core.errors import ConfigurationError, NotFound
from admitone.core.moments import iso
from admitone.infra.durable_files import make_durable
from admitone.settings import Settings

SIGNING: Final = "signing"
_RING: Final = "ring.json"
_RAW = serialization.Encoding.Raw, serialization.PublicFormat.Raw


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the ring, without its private half."""

    id: str
    purpose: str
    public: str
    """Its public half, in hexadecimal digits."""
    made_at: int
    retired_at: int | None = None


class KeyDocument(TypedDict):
    """A key as the interface spells it."""

    id: str
    purpose: str
    public: str
    made_at: str | None
    retired_at: str | None
    signs: bool


class KeyRing:
    """The keys in a folder."""

    def __init__(self, folder: Path, given: str = "") -> None:
        self._folder = folder
        self._given = given

    def known(self) -> list[Key]:
        """Return every key there ever was, oldest first."""
        try:
            return [Key(**entry) for entry in orjson.loads((self._folder / _RING).read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            raise self._unreadable(error) from error

    def documents(self) -> list[KeyDocument]:
        """Return every key as the interface spells it."""
        active = self._active(self.known())
        return [
            {
                "id": key.id,
                "purpose": key.purpose,
                "public": key.public,
                "made_at": iso(key.made_at),
                "retired_at": iso(key.retired_at),
                "signs": active is not None and key.id == active.id,
            }
            for key in self.known()
        ]

    def signer(self, now: int) -> Signer:
        """Return what signs now: the key that was given, or the newest of the ring; the first use makes one."""
        with self._changing() as keys:
            if self._given:
                private = _private(self._given.encode(), "the signing key that was given")
                key = next((key for key in keys if key.public == _public(private)), None)
                if key is None:
                    key = _key_of(private, now)
                    keys.append(key)
                if key.retired_at is not None:
                    raise ConfigurationError(
                        f"Signing key {key.id} was retired.",
                        "give another one: signing_key of [keys]",
                    )
                return Signer(key, private)
            active = self._active(keys)
            if active is None:
                active = self._make(keys, now)
            return Signer(active, self._read(active))

    def rotate(self, now: int) -> Key:
        """Make a new signing key, which signs from now on; the one before it is retired."""
        with self._changing() as keys:
            self._refuse_given()
            before = self._active(keys)
            if before is not None:
                keys[keys.index(before)] = replace(before, retired_at=now)
            return self._make(keys, now)

    def retire(self, key_id: str, now: int) -> Key:
        """Let a key sign no more."""
        with self._changing() as keys:
            for index, key in enumerate(keys):
                if key.id == key_id:
                    keys[index] = (
                        key if key.retired_at is not None else replace(key, retired_at=now)
                    )
                    return keys[index]
        raise NotFound(f"There is no key {key_id!r}.", "admitone keys list shows those there are")

    def _active(self, keys: list[Key]) -> Key | None:
        signing = [key for key in keys if key.purpose == SIGNING and key.retired_at is None]
        if self._given:
            public = _public(_private(self._given.encode(), "the signing key that was given"))
            return next((key for key in signing if key.public == public), None)
        kept = [key for key in signing if self._file(key).exists()]
        return kept[-1] if kept else None

    def _make(self, keys: list[Key], now: int) -> Key:
        private = Ed25519PrivateKey.generate()
        key = _key_of(private, now)
        data = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )  # fmt: skip
        descriptor = os.open(self._file(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        keys.append(key)
        return key

    def _read(self, key: Key) -> Ed25519PrivateKey:
        try:
            return _private(self._file(key).read_bytes(), str(self._file(key)))
        except OSError as error:
            raise self._unreadable(error) from error

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """Let one process at a time change the ring; what it leaves in the list is written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self._folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                keys = self.known()
                before = list(keys)
                yield keys
                if keys != before:
                    self._write(keys)
        except OSError as error:
            raise self._unreadable(error) from error

    def _write(self, keys: list[Key]) -> None:
        new = self._folder / f"{_RING}.new"
        new.write_bytes(orjson.dumps([asdict(key) for key in keys], option=orjson.OPT_INDENT_2))
        make_durable(new)
        new.replace(self._folder / _RING)
        make_durable(self._folder)

    def _file(self, key: Key) -> Path:
        return self._folder / f"{key.id}.key"

    def _refuse_given(self) -> None:
        if self._given:
            raise ConfigurationError(
                "The signing key comes from the settings, so it is not rotated here.",
                "give another key, then retire the old one: admitone keys retire ID",
            )

    def _unreadable(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"The keys in {self._folder} cannot be used: {getattr(error, 'strerror', None) or error}.",
            "mend the folder's permissions, or name another one: path of [keys]",
        )


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signs."""

    key: Key
    _private: Ed25519PrivateKey

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes."""
        return self._private.sign(data)


def is_signed(public: str, signature: bytes, data: bytes) -> bool:
    """Tell whether a public key vouches for some bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def open_key_ring(settings: Settings) -> KeyRing:
    """Return the ring that the settings name."""
    wanted = settings.keys
    given = wanted.signing_key.get_secret_value()
    if wanted.signing_key_file:
        try:
            given = settings.resolve(wanted.signing_key_file).read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"Cannot read the signing key in {wanted.signing_key_file}: {error}.",
                "correct signing_key_file of [keys]",
            ) from error
    return KeyRing(settings.resolve(wanted.path), given.strip())


def _private(data: bytes, where: str) -> Ed25519PrivateKey:
    found: object = None
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        found = serialization.load_pem_private_key(data, None)
    if not isinstance(found, Ed25519PrivateKey):
        raise ConfigurationError(
            f"Expected an Ed25519 private key in PEM without a password: {where} is none.",
            "openssl genpkey -algorithm ed25519 makes one",
        )
    return found


def _public(private: Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes(*_RAW).hex()


def _key_of(private: Ed25519PrivateKey, now: int) -> Key:
    public = _public(private)
    return Key(hashlib.sha256(bytes.fromhex(public)).hexdigest()[:16], SIGNING, public, now)
