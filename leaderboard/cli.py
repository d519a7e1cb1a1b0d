"""The command now-leaderboard: everything that the board can be asked to do."""

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
            help="Floats, rows are images, columns are captions, in the order of the split. Or, "
            "with --t2i, whole numbers: by image the columns of its best captions, best first.",
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
    method: Annotated[str, typer.Option(help="The name that the board shows.")],
    split: Annotated[
        str, typer.Option(help="test, or dev to see a score while choosing.")
    ] = "test",
    t2i: Annotated[
        Path | None,
        typer.Option(
            metavar="T2I.npy",
            help="Where captions are scored otherwise than images: that matrix, images x captions "
            "too; or by caption the rows of its best images.",
        ),
    ] = None,
    image_ids: Annotated[
        Path | None,
        typer.Option(
            help="Keys of the matrix's rows, one a line, where they are in another order than "
            "the split: the rows are put in order."
        ),
    ] = None,
    caption_ids: Annotated[Path | None, typer.Option(help="The same for its columns.")] = None,
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

    The release's fingerprint and keys go into it, so that a matrix made on another release, or in
    another order, is an error and not a low score. Use float32: float16 makes ties.
    """
    from leaderboard.pack import Sources, pack_files  # noqa: PLC0415
    from leaderboard.submission import new_submission, with_details  # noqa: PLC0415

    details = with_overrides(read_toml(about) if about else {}, set_ or [])
    meta = with_details(new_submission(release, track, split, method), details)
    pack_files(output, meta, Sources(similarity, t2i, image_ids, caption_ids))
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


@app.command("compare")
def _compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A result.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="One on the same split.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """Say by how much A is better than B, query by query, and how sure that is.

    The interval is a paired bootstrap over images, p is of a sign-flip test; each recall has
    McNemar's exact test. Training seeds are not in it: run several.
    """
    from leaderboard.pairing import compare_results  # noqa: PLC0415
    from leaderboard.report import comparison_as_json, comparison_as_text  # noqa: PLC0415
    from leaderboard.store import read_result  # noqa: PLC0415

    one, other = read_result(first), read_result(second)
    found = compare_results(one, other)
    names = one.method.name, other.method.name
    typer.echo(comparison_as_json(found) if as_json else comparison_as_text(found, names))


@app.command("schema")
def _schema(
    kind: Annotated[str, typer.Argument(help="submission or result.")] = "submission",
) -> None:
    """Print the JSON schema of submission.json, or of a result."""
    import json  # noqa: PLC0415

    from pydantic import BaseModel  # noqa: PLC0415

    from leaderboard.result import Result  # noqa: PLC0415
    from leaderboard.submission import Submission  # noqa: PLC0415

    kinds: dict[str, type[BaseModel]] = {"submission": Submission, "result": Result}
    if kind not in kinds:
        raise ConfigError(f"schema: found {kind!r}, expected one of {', '.join(kinds)}")
    typer.echo(json.dumps(kinds[kind].model_json_schema(by_alias=True), indent=2))


@app.command("reproduce")
def _reproduce(
    name: Annotated[str, typer.Argument(help="Of the entry: 12 hexadecimal digits.")],
    submission: SubmissionFile,
    store: Annotated[Path, typer.Option(help="Where the entry is filed.")],
    release: ReleaseFolder,
    by: Annotated[str, typer.Option(help="Who ran it again.")],
    commit: Annotated[str | None, typer.Option(help="Commit of the code that was run.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run folder; the hash of its run.toml is kept.")
    ] = None,
) -> None:
    """File your own run of somebody's entry: the board then shows it as reproduced.

    Judge for yourself whether they agree: the difference is printed with its interval.
    """
    from leaderboard.report import comparison_as_text  # noqa: PLC0415
    from leaderboard.reproduce import Claim, reproduce  # noqa: PLC0415
    from leaderboard.store import now  # noqa: PLC0415

    claim = Claim(by, commit, run)
    filed, compared = reproduce(store, name, submission, release, claim, now())
    typer.echo(comparison_as_text(compared, (f"the run of {filed.by}", f"entry {name}")))


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


def main() -> None:
    """Entry point."""
    run(app)
