"""A real PostgreSQL for tests: a cluster of its own on a free port of 127.0.0.1, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

USER, PASSWORD = "admitone", "opensesame"
_ADMIN = "administrator"
_DATABASE = "tests"
_BINARIES = "/usr/lib/postgresql"
_START_SECONDS = 60.0


def find_binaries() -> Path | None:
    """Return the folder with the newest `postgres`, or None where it is not installed."""
    found = sorted(Path(_BINARIES).glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path else None


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _schema_of(url: str) -> str:
    return url.rpartition("%3D")[2]


class PostgresServer:
    """One cluster; it can be stopped, killed and started again on the same port and data.

    `durable=False` turns fsync off, for tests whose subject is not durability.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise FileNotFoundError("PostgreSQL is not installed: scripts/setup.sh as root does it")
        self._binaries = binaries
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="admitone-postgres-"))
        self.port = free_port()
        # The server refuses to run as root.
        self._account = "postgres" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "60",
            "shared_buffers": "64MB",
            "dynamic_shared_memory_type": "mmap",
            "logging_collector": "off",
            "log_min_messages": "warning",
            **({} if durable else {"fsync": "off", "full_page_writes": "off"}),
            **(settings or {}),
        }
        # Where a configuration names no password, as it should not.
        self._passwords = self.folder / "passwords"
        self._initialise()

    def url(self, database: str, schema: str = "public") -> str:
        """Return the URL of a schema in a database, for an ordinary role; more options can be appended."""
        where, secret = f"127.0.0.1:{self.port}/{database}", quote(str(self._passwords), safe="")
        return f"postgresql://{USER}@{where}?passfile={secret}&options=-csearch_path%3D{schema}"

    def new_schema(self) -> str:
        """Return the URL of a schema that does not exist yet: much faster to have than a database."""
        return self.url(_DATABASE, f"test_{next(self._numbers)}")

    def reader_of(self, url: str) -> str:
        """Return the URL for a role that may read what a schema holds now, and has no other right."""
        schema = _schema_of(url)
        role = f"reads_{schema}"
        with self.administrator(_DATABASE) as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
            admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        return url.replace(f"//{USER}@", f"//{role}:{PASSWORD}@")

    def tables(self, url: str) -> list[str]:
        """Return the names of the tables in a schema."""
        query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
        with self.administrator(_DATABASE) as admin:
            return [name for (name,) in admin.execute(query, (_schema_of(url),))]

    def administrator(self, database: str = "postgres") -> psycopg.Connection:
        """Return a connection of a superuser, in autocommit."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=database,
            user=_ADMIN,
            password=PASSWORD,
            autocommit=True,
        )

    @property
    def pid(self) -> int:
        """Return the process id of the running server."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if self._process is None or self._process.poll() is not None:
                # After a kill the old shared memory may still be in use for a moment.
                self._process = self._spawn()
            try:
                self.administrator().close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        """Shut down cleanly, ending open connections."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and all its backends at once, as a crash of the machine would."""
        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=10)
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop and remove everything; what is removed need not be written out first."""
        self._end(signal.SIGQUIT)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = [
            part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")
        ]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._binaries / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                user=self._account,
                group=self._account,
                extra_groups=[] if self._account else None,
                start_new_session=True,
            )

    def _initialise(self) -> None:
        if self._account:
            account = pwd.getpwnam(self._account)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        secret = self.folder / "password"
        secret.write_text(PASSWORD + "\n")
        secret.chmod(0o644)
        subprocess.run(
            [
                self._binaries / "initdb", "-D", self.folder / "data", "-U", _ADMIN, "-E", "UTF8",
                "--no-locale", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync",
            ],
            check=True, stdout=subprocess.DEVNULL, cwd=self.folder, user=self._account,
            group=self._account, extra_groups=[] if self._account else None,
        )  # fmt: skip
        secret.unlink()
        self._passwords.touch(mode=0o600)
        self._passwords.write_text(f"127.0.0.1:*:*:{USER}:{PASSWORD}\n")
        self.start()
        with self.administrator() as admin:
            admin.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
            admin.execute(f"CREATE DATABASE {_DATABASE} OWNER {USER} TEMPLATE template0")
