"""Commands that pack, score, compare and verify."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from now_builder.errors import ConfigError

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


def pack(
    similarity: Annotated[
        Path,
        typer.Argument(
            metavar="SIMILARITY.npy",
            help="Scores, rows are images, columns are captions, in the order of the split.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The submission to write (.zip).")],
    release: ReleaseFolder,
    track: Annotated[
        str,
        typer.Option(
            help="Tokenizer of the captions (jieba, bpe, bert), or data set (flickr30k, coco, "
            "cc152k)."
        ),
    ],
    method: Annotated[str, typer.Option(help="Name shown on the board.")],
    split: Annotated[str, typer.Option(help="test, or dev for model selection.")] = "test",
    image_ids: Annotated[
        Path | None,
        typer.Option(
            help="Keys of the matrix's rows, one a line, if they are in another order than "
            "the split: the rows are reordered."
        ),
    ] = None,
    caption_ids: Annotated[Path | None, typer.Option(help="The same for its columns.")] = None,
    about: Annotated[
        Path | None,
        typer.Option(
            help="TOML with details to show: authors, affiliation, [links], [training], "
            "[postprocessing], [compute].",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="One such field, as training.ensemble_size=2. May be repeated."),
    ] = None,
) -> None:
    """Check, describe and zip a matrix from any framework as a submission.

    It records the release's fingerprint and keys, so that a matrix made on another release, or in
    another order, is an error instead of a low score. Use float32: float16 makes ties.
    """
    from leaderboard.submission.archive import new_submission, with_details
    from leaderboard.submission.matrix import pack_file
    from now_builder.config import read_toml, with_overrides

    details = with_overrides(read_toml(about) if about else {}, set_ or [])
    meta = with_details(new_submission(release, track, split, method), details)
    pack_file(output, meta, similarity, image_ids, caption_ids)
    typer.echo(f"{output}: {meta.method.name}, track {meta.track}, {meta.split} of {release}")


def validate(submission: SubmissionFile, release: ReleaseFolder) -> None:
    """Check a submission without scoring it: fields, order, numbers."""
    from leaderboard.scoring.evaluate import validate

    meta, n_pairs = validate(submission, release)
    typer.echo(
        f"{submission}: fine: {meta.method.name}, track {meta.track}, {n_pairs} pairs of"
        f" {meta.split}, fingerprint {meta.dataset_fingerprint[:16]}"
    )


def score(
    submission: SubmissionFile,
    release: ReleaseFolder,
    attributes: AttributesFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the result JSON to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Score a submission: R@1/5/10 and nDCG@10 both ways, rSum, intervals, ties, references.

    Nothing is stored except with -o; export-site shows the result, submit files it, as a claim:
    whoever has the release has its pairing. A blind round, or a keeper's own run, makes it proof.
    """
    from leaderboard.commands.terminal import as_text
    from leaderboard.scoring.evaluate import score
    from leaderboard.store.entries import write_result

    result = score(submission, release, attributes)
    if output is not None:
        write_result(output, result)
        sys.stderr.write(f"wrote {output}\n")
    typer.echo(result.to_json() if as_json else as_text(result), nl=not as_json)


def recall(
    matrix: Annotated[
        Path, typer.Argument(metavar="MATRIX.npy", help="Floats, images x captions, in C order.")
    ],
    captions_per_image: Annotated[
        int,
        typer.Option(help="Consecutive captions of an image: 5 in Flickr30K and MS-COCO.", min=1),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Compute the recalls of any matrix, without a release. It is read in blocks, of any size."""
    from leaderboard.commands.terminal import recall_text
    from leaderboard.submission.matrix import recall_file, recall_tree

    found = recall_file(matrix, captions_per_image)
    typer.echo(json.dumps(recall_tree(found), indent=2) if as_json else recall_text(found))


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A result.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="A result on the same split.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare results A and B query by query: difference of rSum, interval, tests.

    The interval is by a paired bootstrap over images, p by a sign-flip test; each recall has
    McNemar's exact test. It does not cover training seeds: run several.
    """
    from leaderboard.commands.terminal import comparison_as_text
    from leaderboard.scoring.evaluate import compare_results
    from leaderboard.store.entries import read_result

    one, other = read_result(first), read_result(second)
    found = compare_results(one, other)
    names = one.method.name, other.method.name
    typer.echo(json.dumps(asdict(found), indent=2) if as_json else comparison_as_text(found, names))


def verify(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT.json...", help="Result files.")],
    submission: Annotated[
        Path | None, typer.Option(help="Submission to score again and compare; needs --release.")
    ] = None,
    release: Annotated[
        Path | None, typer.Option(help="Release whose fingerprint must be that of the result.")
    ] = None,
) -> None:
    """Recompute every figure of results from their ranks; exit code 1 if one differs."""
    from leaderboard.store.entries import read_result
    from leaderboard.store.recompute import count_figures, verify

    if submission is not None and (release is None or len(results) > 1):
        raise ConfigError("--submission: expected one result, and --release")
    wrong = 0
    for path in results:
        result = read_result(path)
        found = verify(path, result, submission, release)
        wrong += len(found)
        lines = [f"{path}: {difference}" for difference in found]
        typer.echo("\n".join(lines or [f"{path}: {count_figures(result)} figures agree"]))
    if wrong:
        raise typer.Exit(1)
