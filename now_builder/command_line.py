"""Run a command line: a user's mistake ends in one line on stderr and exit code 1."""

import sys
from typing import NoReturn

import typer

from now_builder.errors import NowError


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; a user's mistake ends in one line and exit code 1.

    Args:
        app: The command line to run on ``sys.argv``.
    """
    try:
        app()
    except NowError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to go on\n")
        sys.exit(130)
    sys.exit(0)
