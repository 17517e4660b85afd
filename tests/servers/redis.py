"""A real Redis for tests: a server of its own on a free port of 127.0.0.1, gone afterwards."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from tests.servers.postgres import free_port

PASSWORD = "opensesame"
_START_SECONDS = 20.0


class RedisServer:
    """One server that keeps nothing on disk; it can be killed, paused and started again on the same port."""

    def __init__(self) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise FileNotFoundError(
                "Redis is not installed: scripts/setup.sh services as root does it"
            )
        self._program = found
        self._folder = Path(tempfile.mkdtemp(prefix="admitone-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = iter(range(1, 1_000))
        self.port = free_port()
        self.start()

    def url(self, database: int = 0) -> str:
        """Return the URL of a database, without the password."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Return the URL of a database nobody else uses."""
        return self.url(next(self._databases))

    def client(self, url: str) -> redis.Redis:
        """Return a client as anybody would make one."""
        return redis.Redis.from_url(url, password=PASSWORD, decode_responses=True)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._process = subprocess.Popen(
            [
                self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "",
                "--appendonly", "no", "--databases", "1000", "--requirepass", PASSWORD,
                "--dir", str(self._folder),
            ],
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with self.client(self.url()) as client:
                    client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        """End the server at once; it forgets everything."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=20)
            self._process = None

    def close(self) -> None:
        """Stop and remove everything."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
