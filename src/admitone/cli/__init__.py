"""The command line; commands import what they need when they run, so that `--help` answers at once."""

from __future__ import annotations

import sys

from admitone.cli.app import app


def main() -> None:
    """Run a command and turn what a user can cause into a message and an exit code."""
    from admitone.core.errors import AdmitoneError

    try:
        app()
    except AdmitoneError as error:
        from admitone.cli.output import fail

        fail(error.problem, error.remedy)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


__all__ = ["app", "main"]
