"""Commands that run a service, and that submit to one."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leaderboard.commands.options import (
    AsJson,
    AttributesFile,
    BoardUrl,
    DatabaseUrl,
    EntryName,
    JudgeKey,
    TokenFile,
)
from now_builder.errors import ConfigError

if TYPE_CHECKING:
    from leaderboard.client import BoardClient

_log = logging.getLogger(__name__)


def serve(
    store: Annotated[Path, typer.Option(help="Folder of results, created if missing.")],
    release: Annotated[
        Path | None,
        typer.Option(
            help="Accept submissions and score them on this release; without it, read-only."
        ),
    ] = None,
    attributes: AttributesFile = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the operator's bearer token; else NOW_LEADERBOARD_TOKEN."),
    ] = None,
    database: DatabaseUrl = None,
    scored: Annotated[
        int, typer.Option(min=0, help="Test submissions scored per user and day.")
    ] = 5,
    attempts: Annotated[
        int, typer.Option(min=0, help="Uploads per user and day, including refused ones.")
    ] = 50,
    judge_key: JudgeKey = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)
    ] = 8000,
) -> None:
    """Serve the board: the pages of export-site, live, and an API to submit to (/openapi.json).

    Submit with: now-leaderboard submit X.zip --url http://127.0.0.1:8000, or with: curl -T X.zip
    -H "Authorization: Bearer $NOW_LEADERBOARD_TOKEN" http://127.0.0.1:8000/v1/submissions

    The operator's token may do everything; make tokens for submitters with: admin token add.
    """
    if release is None and (token_file or database):
        raise ConfigError(
            "--token-file and --database need --release: without it nobody may submit"
        )
    from leaderboard.client import TOKEN_VARIABLE, read_token
    from leaderboard.service.access import hash_operator_token
    from leaderboard.service.quotas import Quotas
    from leaderboard.service.running import Settings, make_judge
    from leaderboard.service.server import serve

    if release is None:
        serve(Settings(store), host, port)
        return
    named = token_file is not None or os.environ.get(TOKEN_VARIABLE)
    operator = hash_operator_token(read_token(token_file)) if named else None
    if operator is None:
        _log.warning("%s is not set: only users' own tokens are valid", TOKEN_VARIABLE)
    judge = make_judge(release, attributes, Quotas(attempts=attempts, scored=scored))
    serve(Settings(store, judge, database, operator, judge_key), host, port)


def status(
    url: BoardUrl,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this entry.")] = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show your entries on a board, or one entry."""
    with _board(url, token_file) as client:
        entries = client.mine() if name is None else [client.entry(name)]
        if as_json:
            typer.echo(json.dumps(entries if name is None else entries[0], indent=2))
            return
        lines = [_line(entry) for entry in entries]
    typer.echo("".join(f"{line}\n" for line in lines), nl=False)


def _line(entry: Mapping[str, Any]) -> str:
    """Show an entry, of the caller's list or alone; alone, a withdrawn one has no rSum."""
    gone = entry.get("withdrawn_at") or entry.get("withdrawal")
    rsum = "" if entry["rsum"] is None else f"rSum {entry['rsum']:.1f}  "
    where = f"{entry['track']} {entry['split']}"
    state = "withdrawn" if gone else entry["evidence"]
    return f"{entry['name']}  {state}  {where}  {rsum}{entry['method']}"


def withdraw(
    name: EntryName,
    url: BoardUrl,
    reason: Annotated[str, typer.Option(help="Public reason, shown in its place.")],
    token_file: TokenFile = None,
) -> None:
    """Withdraw an entry of yours from a board; a tombstone with the reason stays."""
    with _board(url, token_file) as client:
        client.withdraw(name, reason)
    typer.echo(f"{name}: withdrawn")


def quota(url: BoardUrl, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Show the uploads and scored submissions left for today on a board."""
    with _board(url, token_file) as client:
        me = client.me()
        if as_json:
            typer.echo(json.dumps(me, indent=2))
            return
        in_round = me["quota"].get("round")
        left = {
            kind: "no limit" if me["quota"][kind] is None else f"{me['quota'][kind]} left"
            for kind in ("scored", "attempts")
        }
        typer.echo(
            f"{me['handle']} ({', '.join(me['scopes'])}): scored submissions: {left['scored']};"
            f" uploads: {left['attempts']}; new ones from {me['quota']['resets_at']}"
            + (f"; files in this round: {in_round} left" if in_round is not None else "")
        )


@contextmanager
def _board(url: str, token_file: Path | None) -> "Iterator[BoardClient]":
    """Yield a client; reading a response that lacks a field ends in a ``BoardError``."""
    from leaderboard.client import BoardClient, read_token, reading

    with reading(url), closing(BoardClient(url, read_token(token_file))) as client:
        yield client


def send(path: Path, url: str, token_file: Path | None, as_json: bool) -> None:
    """Send a submission to a board with a progress bar; print its entry, or each problem."""
    from rich.console import Console
    from rich.progress import Progress

    from leaderboard.client import BoardError
    from now_builder.formats.io import sha256_of

    with (
        _board(url, token_file) as client,
        Progress(console=Console(stderr=True), transient=True) as bars,
    ):
        size = path.stat().st_size if path.is_file() else 0
        bar = bars.add_task(path.name, total=size)
        try:
            filed = client.submit(path, lambda sent: bars.update(bar, completed=sent))
        except BoardError as error:
            bars.stop()
            if not error.problems:
                raise
            for problem in error.problems:
                sys.stderr.write(f"{problem}\n")
            refused = f"refused ({error.status}) for the problems above"
            raise BoardError(f"{url}: {refused}", error.status) from None
        bars.stop()
        print_filed(filed.name, json.dumps(filed.result), as_json, new=filed.new)
    if filed.turn:
        kept = "" if filed.result["payload_sha256"] == sha256_of(path) else "; your best stands"
        sys.stderr.write(f"file {filed.turn} in this round{kept}\n")
    sys.stderr.write(f"{filed.page}\n")


def print_filed(name: str, result: str, as_json: bool, *, new: bool) -> None:
    """Print an entry: its result as JSON, or one line."""
    if as_json:
        typer.echo(result.rstrip("\n"))
        return
    from leaderboard.board.display_text import CLAIM

    tree = json.loads(result)
    state = "filed" if new else "already there"
    standing = "" if tree["release"]["origin"] == "blind" else f"; {CLAIM}"
    typer.echo(f"{name}: {state}: {tree['method']['name']}, rSum {tree['rsum']:.1f}{standing}")
