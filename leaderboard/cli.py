"""The command now-leaderboard: pack, validate, score, submit, serve, export-site."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from now_builder import __version__
from now_builder.config import read_toml, with_overrides
from now_builder.errors import ConfigError, run

app = typer.Typer(
    name="now-leaderboard",
    help="Judge a similarity matrix (images x captions) on a Noise-of-Web release: recalls both "
    "ways, rSum with its interval, and a board that shows it beside the paper's rows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
TruthFile = Annotated[
    Path | None,
    typer.Option(
        "--truth",
        help="CSV or Parquet with key or url, and lang and/or topic: also shows what knowing only "
        "these would give.",
    ),
]

ReleaseArgument = Annotated[Path, typer.Argument(metavar="RELEASE", help="Its folder.")]
JsonSwitch = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

blind_app = typer.Typer(no_args_is_help=True, help="Rounds whose pairing only the judge has.")
app.add_typer(blind_app, name="blind")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print it.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command("pack")
def _pack(
    similarity: Annotated[
        Path,
        typer.Argument(
            metavar="SIMILARITY.npy",
            help="Floats, rows are images, columns are captions, in the order of the split.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The submission to write (.zip).")],
    release: ReleaseFolder,
    track: Annotated[str, typer.Option(help="Tokenizer of the captions: jieba, bpe or bert.")],
    method: Annotated[str, typer.Option(help="The name that the board shows.")],
    split: Annotated[
        str, typer.Option(help="test, or dev to see a score while choosing.")
    ] = "test",
    about: Annotated[
        Path | None,
        typer.Option(
            help="TOML with more to show: authors, affiliation, [links], [training], "
            "[postprocessing], [compute].",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="One such field: training.ensemble_size=2. May be repeated."),
    ] = None,
) -> None:
    """Pack a matrix from any framework as a submission: it is checked, described and zipped.

    The release's fingerprint goes into it, so that a matrix made on another release is an error
    and not a low score. Use float32: float16 makes ties.
    """
    from leaderboard.submission import (  # noqa: PLC0415
        new_submission,
        pack,
        read_matrix_file,
        with_details,
    )

    details = with_overrides(read_toml(about) if about else {}, set_ or [])
    meta = with_details(new_submission(release, track, split, method), details)
    shape = len(meta.image_ids or ()), len(meta.caption_ids or ())
    pack(output, read_matrix_file(similarity, shape), meta)
    typer.echo(f"{output}: {meta.method.name}, track {meta.track}, {meta.split} of {release}")


@app.command("validate")
def _validate(submission: SubmissionFile, release: ReleaseFolder) -> None:
    """Say whether a submission would be accepted, without scoring it: fields, order, numbers."""
    from leaderboard.evaluate import validate  # noqa: PLC0415

    meta, n_pairs = validate(submission, release)
    typer.echo(
        f"{submission}: fine: {meta.method.name}, track {meta.track}, {n_pairs} pairs of"
        f" {meta.split}, fingerprint {meta.dataset_fingerprint[:16]}"
    )


@app.command("score")
def _score(
    submission: SubmissionFile,
    release: ReleaseFolder,
    truth: TruthFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the result JSON here.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, for machines.")
    ] = False,
) -> None:
    """Score a submission: R@1/5/10 both ways, rSum, intervals, ties, references.

    Nothing is stored but what -o names; export-site makes a page of it, submit files it.
    """
    from leaderboard.evaluate import score  # noqa: PLC0415
    from leaderboard.report import as_text  # noqa: PLC0415
    from leaderboard.store import write_result  # noqa: PLC0415

    result = score(submission, release, truth)
    if output is not None:
        write_result(output, result)
        sys.stderr.write(f"wrote {output}\n")
    typer.echo(result.to_json() if as_json else as_text(result), nl=not as_json)


@app.command("submit")
def _submit(
    submission: SubmissionFile,
    release: ReleaseFolder,
    store: Annotated[Path, typer.Option(help="Folder of results; made where missing.")],
    truth: TruthFile = None,
) -> None:
    """Score a submission and file its result: one immutable JSON, named by its content."""
    from leaderboard.evaluate import score  # noqa: PLC0415
    from leaderboard.store import file_result  # noqa: PLC0415

    entry, new = file_result(store, score(submission, release, truth))
    state = "filed" if new else "already there"
    typer.echo(f"{entry.name}: {state}: {entry.result.method.name}, rSum {entry.result.rsum:.1f}")


@app.command("serve")
def _serve(
    store: Annotated[Path, typer.Option(help="Folder of results; made where missing.")],
    release: Annotated[
        Path | None,
        typer.Option(help="Accept submissions and score them on this release; else read-only."),
    ] = None,
    truth: TruthFile = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the submitters' bearer token; else NOW_LEADERBOARD_TOKEN."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
) -> None:
    """Serve the board: the pages of export-site, live, and PUT /v1/submissions.

    Submit with: curl -T X.zip -H "Authorization: Bearer $NOW_LEADERBOARD_TOKEN"
    http://127.0.0.1:8000/v1/submissions
    """
    try:
        from leaderboard.server import make_judge, read_token, serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve needs {error.name}: pip install 'noise-of-web[server]'") from None

    judge = make_judge(release, truth, read_token(token_file)) if release else None
    serve(store, judge, host, port)


@app.command("export-site")
def _export_site(
    site: Annotated[Path, typer.Argument(help="Folder to write; an earlier site is replaced.")],
    results: Annotated[
        list[Path],
        typer.Option(help="A result JSON, or a folder of them (a store). May be repeated."),
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[RESULTS]...", help="More of the same.")
    ] = None,
) -> None:
    """Write the board as static pages for any host: results beside the paper's rows.

    Open SITE/index.html. No script, nothing loaded from elsewhere; the same results give the same
    bytes.
    """
    from leaderboard.page import export_site  # noqa: PLC0415
    from leaderboard.store import read_results  # noqa: PLC0415

    entries = read_results([*results, *(more or [])])
    count = export_site(site, entries)
    typer.echo(f"{site / 'index.html'}: {len(entries)} results, {count} files")


@app.command("dataset-report")
def _dataset_report(
    release: ReleaseArgument,
    as_json: JsonSwitch = False,
    store: Annotated[
        Path | None, typer.Option(help="Also file it in this folder of results, for the board.")
    ] = None,
) -> None:
    """Count duplicates and leaks of a release, and what they leave a perfect scorer to reach."""
    from leaderboard.dataset import dataset_report, file_report  # noqa: PLC0415
    from leaderboard.report import dataset_text  # noqa: PLC0415

    report = dataset_report(release)
    if store is not None:
        sys.stderr.write(f"filed {file_report(store, report)}\n")
    typer.echo(report.to_json() if as_json else dataset_text(report), nl=not as_json)


@blind_app.command("make")
def _blind_make(
    release: ReleaseArgument,
    out: Annotated[Path, typer.Argument(help="Folder to write: participants/ and judge/.")],
    pairs: Annotated[
        int | None, typer.Option(help="Test pairs to draw; all of them if not given.")
    ] = None,
    round_: Annotated[str, typer.Option("--round", help="Its name.")] = "round",
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="Text of 32 characters or more that the draw and the orders follow from, another "
            "one for each round; one is made if not given."
        ),
    ] = None,
    with_train: Annotated[
        bool, typer.Option(help="Give participants the release's train and dev too.")
    ] = False,
) -> None:
    """Write a blind round: images and captions of the test split, each in a secret order.

    Publish OUT/participants and keep OUT/judge: score X.zip --release OUT/judge. The release, its
    list of pages and its captures must stay private until the round is closed.
    """
    from leaderboard.blind import RoundPlan, make_round  # noqa: PLC0415

    plan = RoundPlan(pairs, round_, secret_file, with_train)
    told = make_round(release, out, plan)
    typer.echo(f"{out}: {told.round}, {told.pairs} pairs, commitment {told.commitment}")


@blind_app.command("close")
def _blind_close(
    out: Annotated[Path, typer.Argument(help="Folder that `blind make` wrote.")],
) -> None:
    """Publish the pairing: OUT/closed, on which anyone can check and score again.

    sha256sum OUT/closed/blind.json must give the commitment of round.json.
    """
    from leaderboard.blind import close_round  # noqa: PLC0415

    typer.echo(f"{close_round(out)}: publish it; scores from now on are no blind ones")


def main() -> None:
    """Entry point."""
    run(app)
