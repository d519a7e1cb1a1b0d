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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReleaseArgument = Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of the release.")]
