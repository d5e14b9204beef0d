"""The command ``gradreg``: its subcommands, and errors without tracebacks."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable

#: What a user can cause and mend. Anything else is our mistake and shows its traceback.
USER_ERRORS = (ValueError, TypeError, OSError, RuntimeError)
EXIT_USER_ERROR = 2


def main() -> None:
    """Run the command line; errors of the user's end with one message and exit code 2."""
    try:
        from gradreg.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs {error.name}: pip install 'gradreg[cli]'.")
    if not os.environ.get("GRADREG_DEBUG"):
        warnings.showwarning = _one_line_each()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of characters that the terminal's encoding has not
    try:
        app()
    except USER_ERRORS as error:
        if os.environ.get("GRADREG_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_USER_ERROR)


def _one_line_each() -> Callable[..., None]:
    """Shows a warning in one line, without the place that it comes from, and once."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: object) -> None:
        line = " ".join(f"warning: {message}".split())
        if line not in seen:
            seen.add(line)
            print(line, file=sys.stderr)  # noqa: T201

    return show
