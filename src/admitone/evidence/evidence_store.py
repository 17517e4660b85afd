"""Where evidence is kept: whole objects under paths, in a folder or in any object store.

What every implementation guarantees:

- *Whole.* `read` and `list` find an object with all its bytes or not at all, whatever was interrupted.
- *Durable.* What `write` returned from survives the machine.
- *Replaced.* Writing a path again puts the new bytes in the place of the old ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from admitone.core.errors import ConfigurationError, NotFound, ServiceUnreachable
from admitone.infra.durable_files import make_durable

_PARTIAL = ".partial"


class EvidenceStore(Protocol):
    """Objects by path; a path is relative, its parts are separated by slashes."""

    def write(self, path: str, data: bytes) -> None:
        """Make an object durable under its path, in the place of one that is there."""

    def read(self, path: str) -> bytes:
        """Return an object's bytes, or raise `NotFound`."""

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all objects below a prefix, in order."""

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""


class FolderStore:
    """Evidence in a local folder: written beside, made durable, then renamed into place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, path: str, data: bytes) -> None:
        """Make an object durable under its path, in the place of one that is there."""
        target = self._folder / path
        with _reaching("write", path):
            _make_folder(target.parent)
            partial = target.parent / f".{uuid.uuid4().hex}{_PARTIAL}"
            try:
                with partial.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
            make_durable(target.parent)

    def read(self, path: str) -> bytes:
        """Return an object's bytes, or raise `NotFound`."""
        with _reaching("read", path), _finding(path):
            return (self._folder / path).read_bytes()

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all objects below a prefix, in order."""
        return sorted(
            file.relative_to(self._folder).as_posix()
            for file in (self._folder / prefix).rglob("*")
            if not file.is_dir() and not file.name.endswith(_PARTIAL)
        )

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""
        with _reaching("remove", path):
            (self._folder / path).unlink(missing_ok=True)


class FsspecStore:
    """Evidence behind any fsspec URL, one put for each object: `s3://`, `gs://`, `memory://` and so on.

    Object stores show an object whole or not at all. On a file system that does not, an interrupted write leaves an
    object that nobody lists, or one whose checksum is another.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self._url = url
        self._options = options or {}
        self._opened: tuple[int, Any, str] | None = None

    def write(self, path: str, data: bytes) -> None:
        """Make an object durable under its path, in the place of one that is there."""
        system, place = self._place(path)
        with _reaching("write", path):
            try:
                system.pipe_file(place, data)
            except FileNotFoundError:
                # Some systems have folders that must be there first.
                system.makedirs(place.rpartition("/")[0], exist_ok=True)
                system.pipe_file(place, data)

    def read(self, path: str) -> bytes:
        """Return an object's bytes, or raise `NotFound`."""
        system, place = self._place(path)
        with _reaching("read", path), _finding(path):
            data: bytes = system.cat_file(place)
        return data

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all objects below a prefix, in order."""
        system, place = self._place(prefix)
        # Some systems answer from listings they remember, and would not see what others wrote since.
        system.invalidate_cache()
        with _reaching("list", prefix), suppress(FileNotFoundError):
            return sorted(prefix + name[len(place) :] for name in system.find(place))
        return []

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""
        system, place = self._place(path)
        with _reaching("remove", path), suppress(FileNotFoundError):
            system.rm_file(place)

    def _place(self, path: str) -> tuple[Any, str]:
        # A client that was opened before a fork must not be used after it.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *self._open())
        _, system, root = self._opened
        return system, f"{root.rstrip('/')}/{path}"

    def _open(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        try:
            with _reaching("open", self._url):
                system, root = url_to_fs(self._url, **self._options)
        except (ImportError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"Cannot open the evidence store {self._url}: {error}.",
                "install the package that fsspec names for this kind of URL, or mend [evidence]",
            ) from error
        return system, root


@contextmanager
def _reaching(what: str, path: str) -> Iterator[None]:
    """Say of a store that fails what could not be done."""
    try:
        yield
    except OSError as error:
        raise ServiceUnreachable(
            f"Cannot {what} evidence {path}: {error}.",
            "check [evidence], its access and its free space",
        ) from error


@contextmanager
def _finding(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFound(f"There is no evidence {path}.") from None


def _make_folder(folder: Path) -> None:
    """Create a folder, and those above it, so that they survive the machine too."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    make_durable(folder.parent)
