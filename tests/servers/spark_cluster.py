"""A real Spark cluster for tests: a standalone master and its workers on free ports of 127.0.0.1, gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.servers.postgres import free_port

_HOME = Path(pyspark.__file__).parent
_START_SECONDS = 60.0


class SparkCluster:
    """One master; each worker has one core, and can be killed together with everything it runs."""

    def __init__(self, workers: int = 2, memory: str = "2g") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="admitone-spark-"))
        self._memory = memory
        self._page = f"http://127.0.0.1:{(page := free_port())}/json/"
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._master = self._spawn(
            "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page),
        )  # fmt: skip
        # A worker's page takes any free port: it must not be the one that the master is about to take.
        self.await_workers(0)
        for _ in range(workers):
            self.add_worker()
        self.await_workers(workers)

    def state(self) -> dict[str, Any]:
        """Return what the master knows: its workers and applications."""
        with urllib.request.urlopen(self._page, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def add_worker(self) -> None:
        """Start another worker; it registers by itself."""
        name = f"worker-{len(self.workers)}"
        self.workers.append(
            self._spawn(
                name, "org.apache.spark.deploy.worker.Worker",
                "--host", "127.0.0.1", "--cores", "1", "--memory", self._memory,
                "--webui-port", "0", "--work-dir", str(self.folder / name), self.url,
            )
        )  # fmt: skip

    def await_workers(self, count: int) -> None:
        """Wait until the master has as many living workers."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if self.state()["aliveworkers"] == count:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster does not start: {self._last_words()}")
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the cluster, with what the workers run."""
        started = [self._master, *self.workers]
        alive = [psutil.Process(each.pid) for each in started if each.poll() is None]
        return [process for each in alive for process in (each, *each.children(recursive=True))]

    def worker_of(self, pid: int) -> int:
        """Return the number of the worker that a process belongs to."""
        ancestors = {process.pid for process in psutil.Process(pid).parents()}
        (number,) = (n for n, worker in enumerate(self.workers) if worker.pid in ancestors)
        return number

    def kill_worker(self, number: int) -> int:
        """Kill a worker, its executor and the executor's Python at once, as a lost machine would."""
        worker = psutil.Process(self.workers[number].pid)
        return _kill([worker, *worker.children(recursive=True)])

    def close(self) -> None:
        """Stop and remove everything."""
        _kill(self.processes())
        for process in (self._master, *self.workers):
            process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [_HOME / "bin" / "spark-class", program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={
                    **os.environ,
                    "SPARK_HOME": str(_HOME),
                    "SPARK_CONF_DIR": str(self.folder),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": str(self.folder),
                    "SPARK_DAEMON_MEMORY": "256m",
                },
                start_new_session=True,
            )

    def _last_words(self) -> str:
        logs = (path.read_text(errors="replace")[-1000:] for path in self.folder.glob("*.log"))
        return "\n".join(logs)


def _kill(family: list[psutil.Process]) -> int:
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=30)
    return len(family)
