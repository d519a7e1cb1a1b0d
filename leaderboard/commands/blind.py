"""Commands for blind rounds."""

from pathlib import Path
from typing import Annotated

import typer

from leaderboard.commands.options import ReleaseArgument


def make(
    release: ReleaseArgument,
    out: Annotated[Path, typer.Argument(help="Folder to write: participants/ and judge/.")],
    pairs: Annotated[
        int | None, typer.Option(help="Number of test pairs to draw; all by default.")
    ] = None,
    round_: Annotated[str, typer.Option("--round", help="Name of the round.")] = "round",
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a secret of 32 characters or more, which determines the draw and the "
            "orders; a new one for each round. By default one is made."
        ),
    ] = None,
    with_train: Annotated[
        bool, typer.Option(help="Include the release's train and dev for participants.")
    ] = False,
    scored: Annotated[
        int, typer.Option(min=1, help="Files that a person may have scored in the round.")
    ] = 5,
    codabench: Annotated[
        Path | None,
        typer.Option(
            metavar="BUNDLE.zip",
            help="Also write the round as a competition for Codabench. The zip holds the pairing.",
        ),
    ] = None,
) -> None:
    """Write a blind round: images and captions of the test split, each in a secret order.

    Publish OUT/participants and keep OUT/judge: score X.zip --release OUT/judge. The release, its
    list of pages and its captures must stay private until the round is closed: whoever crawls the
    pages again finds the pairing.
    """
    from leaderboard.blind import RoundPlan, make_round

    plan = RoundPlan(pairs, round_, secret_file, with_train, scored, codabench)
    blind = make_round(release, out, plan)
    typer.echo(f"{out}: {blind.round}, {blind.pairs} pairs, commitment {blind.commitment}")


def close(out: Annotated[Path, typer.Argument(help="Folder that `blind make` wrote.")]) -> None:
    """Publish the pairing: OUT/closed, on which anyone can check and score again.

    sha256sum OUT/closed/blind.json must give the commitment of round.json.
    """
    from leaderboard.blind import close_round

    typer.echo(f"{close_round(out)}: publish it; later scores are not blind")
