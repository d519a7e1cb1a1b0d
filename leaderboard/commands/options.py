"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

SubmissionFile = Annotated[
    Path,
    typer.Argument(metavar="X.zip", help="A submission, made by pack or pc2-baseline predict."),
]
ReleaseFolder = Annotated[
    Path,
    typer.Option(
        "--release", help="The release it was made on: a folder of now-builder, or the authors'."
    ),
]
AttributesFile = Annotated[
    Path | None,
    typer.Option(
        "--attributes",
        help="CSV or Parquet of page attributes: key or url, and lang, topic and/or ocr (see "
        "now-builder ocr); adds the scores of knowing only these.",
    ),
]
JudgeKey = Annotated[
    Path | None,
    typer.Option(
        "--judge-key",
        envvar="NOW_LEADERBOARD_JUDGE_KEY",
        show_envvar=True,
        help="File with the judge's private key, which signs the filed records (see keys make).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReleaseArgument = Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of the release.")]
