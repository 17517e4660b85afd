"""A hot standby of a PostgreSQL server of the tests: it follows, lags as long as it is stopped, and is promoted."""

from __future__ import annotations

import os
import pwd
import subprocess
import time

from tests.servers.postgres import PASSWORD, PostgresServer

_PATIENCE_S = 60.0


class PostgresStandby(PostgresServer):
    """A copy of a running server that streams from it, or takes its place."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__()

    def url_of_both(self, url: str) -> str:
        """Return the URL that finds whichever of both takes writes, given that of the primary."""
        primary, standby = (f"127.0.0.1:{server.port}" for server in (self._primary, self))
        both = url.replace(f"@{primary}/", f"@{primary},{standby}/")
        return f"{both}&target_session_attrs=read-write"

    def confirm_every_commit(self) -> None:
        """Let the primary answer no commit before this standby has it."""
        with self._primary.administrator() as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
        self._wait_for("sync_state = 'sync'")

    def catch_up(self) -> None:
        """Wait until this standby has everything that the primary has."""
        self._wait_for("state = 'streaming' AND replay_lsn >= pg_current_wal_lsn()")

    def promote(self) -> None:
        """Become a server that takes writes."""
        with self.administrator() as admin:
            assert admin.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def _wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        with self._primary.administrator() as admin:
            query = f"SELECT 1 FROM pg_stat_replication WHERE {condition}"  # noqa: S608
            while admin.execute(query.encode()).fetchone() is None:
                assert time.monotonic() < deadline, f"no standby is {condition}"
                time.sleep(0.02)

    def _initialise(self) -> None:
        if self._account:
            account = pwd.getpwnam(self._account)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        subprocess.run(
            [
                self._binaries / "pg_basebackup", "-h", "127.0.0.1", "-p", str(self._primary.port),
                "-U", "administrator", "-D", self.folder / "data", "-R", "-X", "stream",
                "--checkpoint=fast", "--no-sync",
            ],
            check=True, cwd=self.folder, user=self._account, group=self._account,
            extra_groups=[] if self._account else None, env={**os.environ, "PGPASSWORD": PASSWORD},
        )  # fmt: skip
        self.start()
        self.catch_up()
