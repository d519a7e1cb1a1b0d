"""Commands for the judge's keys."""

from pathlib import Path
from typing import Annotated

import typer

Store = Annotated[Path, typer.Option(help="Folder of results.")]


def make(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="New file for the private key.")],
    store: Store,
) -> None:
    """Make the first key of a store; its public part is filed in STORE/keys.

    Entries that are in the store already are signed as known, not as scored, by date.
    """
    from leaderboard.store.entries import prepare_store, read_results
    from leaderboard.store.signatures import make_key

    prepare_store(store)
    entries = read_results([store]) if (store / "results").is_dir() else []
    made = make_key(store, key, entries)
    typer.echo(f"{made.name}: {key} is private, keep it; publish the name beside the board")


def show(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="File with a private key.")],
    store: Store,
) -> None:
    """Print the name and the public key of a private key."""
    from leaderboard.store.signatures import name_of, public_of, read_private

    public = public_of(read_private(key, store))
    typer.echo(f"{name_of(public)}  {public}")


def rotate(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="File with the key in use.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="New file for the next key.")],
    store: Store,
) -> None:
    """Make the next key, signed by the one in use, which signs nothing after it."""
    from leaderboard.store.signatures import rotate_key

    typer.echo(f"{rotate_key(store, key, new).name}: in use now; keep {new}, destroy {key}")


def list_(store: Store) -> None:
    """List the keys of a store and the numbers of the signatures that each may make."""
    from leaderboard.store.signatures import read_chain, refuse_broken

    chain = read_chain(store)
    refuse_broken(store, chain)
    for key, after in zip(chain.keys, [*chain.keys[1:], None], strict=False):
        until = f"{after.first - 1}, retired {after.made_at.isoformat()}" if after else "in use"
        typer.echo(f"{key.name}  from {key.made_at.isoformat()}  {key.first} to {until}")
    if not chain.keys:
        typer.echo(f"{store}: no key, not signed")
