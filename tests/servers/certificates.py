"""Certificates for tests of TLS: an authority, a server on 127.0.0.1 and a client it trusts, all in PEM."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path) -> None:
    """Write `authority.pem`, `server.pem`, `client.pem` and `client.key`; `server.pem` holds its key too."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(
        folder, "req", "-x509", *_new_key("authority"), "-subj", "/CN=tests", "-days", "2",
        "-out", "authority.pem",
    )  # fmt: skip
    for name in ("server", "client"):
        _openssl(
            folder, "req", "-x509", *_new_key(name), "-subj", f"/CN={name}", "-days", "2",
            "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE",
            "-CA", "authority.pem", "-CAkey", "authority.key", "-out", f"{name}.pem",
        )  # fmt: skip
    server = folder / "server.pem"
    server.write_text((folder / "server.key").read_text() + server.read_text())


def _new_key(name: str) -> list[str]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    return [*curve, "-noenc", "-keyout", f"{name}.key"]


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
