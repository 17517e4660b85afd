"""Two pipelines at once that carry the same events by the hundred thousand, on both stores."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.faults.crowd import crowd
from tests.faults.pieces import Found
from tests.servers.postgres import PostgresServer


def crowd_campaign(events: int, seed: int, folder: Path, console: Console) -> Found:
    """Deliver so many events twice, in opposite orders; each is admitted once."""
    struck, findings = {}, []
    server = PostgresServer()
    try:
        for store, url in (("sqlite", "sqlite:data/ledger.db"), ("postgres", server.new_schema())):
            console.print(f"two pipelines on {store}")
            run, problems = crowd(folder / store, url, events, seed=seed)
            findings += [f"{store}: {problem}" for problem in problems]
            if (run["admitted"], run["duplicates"], run["balanced"]) != (events, events, True):
                findings.append(f"{store}: {run}")
            struck[f"deliveries on {store}"] = run["admitted"] + run["duplicates"]
    finally:
        server.close()
    return struck, findings
