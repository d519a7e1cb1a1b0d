"""The command now-leaderboard: everything that the board can be asked to do."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from now_builder import __version__
from now_builder.config import read_toml, with_overrides
from now_builder.errors import ConfigError, run

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from sqlalchemy import Engine

    from leaderboard.client import Board

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

BoardUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="NOW_LEADERBOARD_URL", show_envvar=True, help="Address of the board."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with your token; else NOW_LEADERBOARD_TOKEN."),
]
EntryName = Annotated[str, typer.Argument(metavar="NAME", help="Of an entry.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="NOW_LEADERBOARD_DATABASE",
        show_envvar=True,
        help="sqlite:///FILE or postgresql://USER@HOST/NAME; a password is best left to the "
        "variable. Else the store's own, in its private folder.",
    ),
]
ReleaseArgument = Annotated[Path, typer.Argument(metavar="RELEASE", help="Its folder.")]

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
    release: Annotated[
        Path | None, typer.Option(help="With --store: the release it was made on.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder of results; made where missing.")
    ] = None,
    truth: TruthFile = None,
    url: Annotated[str | None, typer.Option(help="Send it to this board instead.")] = None,
    token_file: TokenFile = None,
    anonymous_until: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="With --url: show who it is from that day on."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a submission to a board (--url), or score it here into a folder (--store, --release).

    Either way the result is one immutable JSON, named by its content; the same file sent again is
    the same entry, so sending again is safe. A refusal lists every problem and how to mend it.
    """
    if url is not None and store is None:
        _send(submission, url, token_file, anonymous_until, as_json)
        return
    if url is not None or store is None or release is None:
        raise ConfigError("submit: expected --url URL, or --store FOLDER with --release RELEASE")
    from leaderboard.evaluate import score  # noqa: PLC0415
    from leaderboard.store import file_result  # noqa: PLC0415

    entry, new = file_result(store, score(submission, release, truth))
    _print_filed(entry.name, entry.result.to_json(), as_json, new=new)


def _send(
    path: Path, url: str, token_file: Path | None, anonymous_until: str | None, as_json: bool
) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    from leaderboard.client import BoardError  # noqa: PLC0415

    console = Console(stderr=True)
    with (
        closing(_board(url, token_file)) as board,
        Progress(console=console, transient=True) as bars,
    ):
        size = path.stat().st_size if path.is_file() else 0
        bar = bars.add_task(path.name, total=size)
        try:
            filed = board.submit(path, anonymous_until, partial(_advance, bars, bar))
        except BoardError as error:
            bars.stop()
            for problem in error.problems:
                sys.stderr.write(f"{problem}\n")
            raise
    _print_filed(filed.name, json.dumps(filed.result), as_json, new=filed.new)
    sys.stderr.write(f"{filed.page}\n")


def _advance(bars: "Progress", bar: "TaskID", sent: int) -> None:
    bars.update(bar, completed=sent)


def _print_filed(name: str, result: str, as_json: bool, *, new: bool) -> None:
    if as_json:
        typer.echo(result.rstrip("\n"))
        return
    tree = json.loads(result)
    state = "filed" if new else "already there"
    typer.echo(f"{name}: {state}: {tree['method']['name']}, rSum {tree['rsum']:.1f}")


def _board(url: str, token_file: Path | None) -> "Board":
    try:
        from leaderboard.client import Board, read_token  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"--url needs {error.name}: pip install 'noise-of-web[server]'") from None
    return Board(url, read_token(token_file))


@app.command("status")
def _status(
    url: BoardUrl,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One entry only.")] = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show your entries on a board, or one entry."""
    with closing(_board(url, token_file)) as board:
        entries = board.mine() if name is None else [board.entry(name)]
    if as_json:
        typer.echo(json.dumps(entries if name is None else entries[0], indent=2))
        return
    for entry in entries:
        state = "withdrawn" if entry.get("withdrawn_at") else entry["evidence"]
        where = f"{entry['track']} {entry['split']}"
        typer.echo(
            f"{entry['name']}  {state}  {where}  rSum {entry['rsum']:.1f}  {entry['method']}"
        )


@app.command("withdraw")
def _withdraw(
    name: EntryName,
    url: BoardUrl,
    reason: Annotated[str, typer.Option(help="Shown in its place; public.")],
    token_file: TokenFile = None,
) -> None:
    """Take an entry of yours off a board; a tombstone with the reason stays."""
    with closing(_board(url, token_file)) as board:
        board.withdraw(name, reason)
    typer.echo(f"{name}: withdrawn")


@app.command("quota")
def _quota(url: BoardUrl, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Show what is left of today's uploads and scored submissions on a board."""
    with closing(_board(url, token_file)) as board:
        me = board.me()
    if as_json:
        typer.echo(json.dumps(me, indent=2))
        return
    left = {
        kind: "no limit" if me["quota"][kind] is None else f"{me['quota'][kind]} left"
        for kind in ("scored", "attempts")
    }
    typer.echo(
        f"{me['handle']} ({', '.join(me['scopes'])}): scored submissions: {left['scored']};"
        f" uploads: {left['attempts']}; new ones from {me['quota']['resets_at']}"
    )


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
        typer.Option(help="File with the operator's bearer token; else NOW_LEADERBOARD_TOKEN."),
    ] = None,
    database: DatabaseUrl = None,
    scored: Annotated[
        int, typer.Option(min=0, help="Test submissions that a user may have scored in a day.")
    ] = 5,
    attempts: Annotated[
        int, typer.Option(min=0, help="Uploads of a user in a day, refused ones among them.")
    ] = 50,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
) -> None:
    """Serve the board: the pages of export-site, live, and an API to submit to (/openapi.json).

    Submit with: now-leaderboard submit X.zip --url http://127.0.0.1:8000, or with: curl -T X.zip
    -H "Authorization: Bearer $NOW_LEADERBOARD_TOKEN" http://127.0.0.1:8000/v1/submissions

    The operator's token may do everything; submitters get tokens of their own by: admin token add.
    """
    if release is None and (token_file or database):
        raise ConfigError("--token-file and --database need --release: else nobody may submit")
    try:
        from leaderboard.access import make_operator  # noqa: PLC0415
        from leaderboard.quotas import Quotas  # noqa: PLC0415
        from leaderboard.server import serve  # noqa: PLC0415
        from leaderboard.service import Settings, make_judge  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve needs {error.name}: pip install 'noise-of-web[server]'") from None
    from leaderboard.client import TOKEN_VARIABLE, read_token  # noqa: PLC0415

    if release is None:
        serve(Settings(store), host, port)
        return
    named = token_file is not None or os.environ.get(TOKEN_VARIABLE)
    operator = make_operator(read_token(token_file)) if named else None
    if operator is None:
        sys.stderr.write(f"{TOKEN_VARIABLE} is not set: only users' own tokens are let in\n")
    judge = make_judge(release, truth, Quotas(attempts=attempts, scored=scored))
    serve(Settings(store, judge, database, operator), host, port)


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

    Open SITE/index.html. Nothing is loaded from elsewhere, all of it works without script; the same
    results give the same bytes. What dataset-report filed in a store becomes a page too.
    """
    from leaderboard.dataset import read_reports  # noqa: PLC0415
    from leaderboard.page import export_site  # noqa: PLC0415
    from leaderboard.store import read_results  # noqa: PLC0415

    paths = [*results, *(more or [])]
    entries = read_results(paths)
    count = export_site(site, entries, [report for path in paths for report in read_reports(path)])
    typer.echo(f"{site / 'index.html'}: {len(entries)} results, {count} files")


@app.command("dataset-report")
def _dataset_report(
    release: ReleaseArgument,
    as_json: AsJson = False,
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


@app.command("verify")
def _verify(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT.json...", help="Result files.")],
    submission: Annotated[
        Path | None, typer.Option(help="Score it again, and compare; needs --release.")
    ] = None,
    release: Annotated[
        Path | None, typer.Option(help="Its fingerprint must be that of the result.")
    ] = None,
) -> None:
    """Recompute every figure of results from the ranks in them; exit code 1 if one differs."""
    from leaderboard.store import read_result  # noqa: PLC0415
    from leaderboard.verify import count_figures, verify  # noqa: PLC0415

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


@app.command("recall")
def _recall(
    matrix: Annotated[
        Path, typer.Argument(metavar="MATRIX.npy", help="Floats, images x captions, in C order.")
    ],
    captions_per_image: Annotated[
        int, typer.Option(help="They stand one after another: 5 in Flickr30K and MS-COCO.", min=1)
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Give the recalls of any matrix, without a release. It is read in blocks, of any size."""
    from leaderboard.matrix import recall_file, recall_tree  # noqa: PLC0415
    from leaderboard.report import recall_text  # noqa: PLC0415

    found = recall_file(matrix, captions_per_image)
    typer.echo(json.dumps(recall_tree(found), indent=2) if as_json else recall_text(found))


@app.command("check-store")
def _check_store(
    store: Annotated[Path, typer.Argument(help="Folder of results, as it would be.")],
    base: Annotated[
        Path | None, typer.Option(help="The same folder as it is: nothing of it may change.")
    ] = None,
    blind: Annotated[
        bool,
        typer.Option("--blind", help="Take new results of blind rounds: for who judged them."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Judge what a pull request would make of a folder of results; exit code 1 on any problem.

    Every file is read strictly, every new result recomputed from its ranks. Nothing in the folder
    is run.
    """
    from leaderboard.check_store import check_store  # noqa: PLC0415

    problems = check_store(store, base, blind=blind)
    if as_json:
        typer.echo(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        lines = [f"{problem.code}: {problem}" for problem in problems]
        typer.echo("\n".join(lines) or f"{store}: fine")
    if problems:
        raise typer.Exit(1)


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


@app.command("export")
def _export(
    board: Annotated[
        str,
        typer.Argument(help="jieba, bpe, bert, flickr30k, coco-1k, coco-5k or cc152k."),
    ],
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results", "--store", help="A result JSON, or a store. None: the reported rows alone."
        ),
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="csv, json, md, tex or bib.")] = "csv",
) -> None:
    """Print a board as a table for a spreadsheet, a program, a README or a paper.

    Rows under different training noise, or scored on different data, get tables of their own.
    The keys of --format tex are those of --format bib.
    """
    from typing import get_args  # noqa: PLC0415

    from leaderboard.export_rows import export_rows  # noqa: PLC0415
    from leaderboard.exports import FORMATS  # noqa: PLC0415
    from leaderboard.reported import Board  # noqa: PLC0415
    from leaderboard.store import read_results  # noqa: PLC0415

    found: Board | None = next((name for name in get_args(Board) if name == board), None)
    if found is None:
        raise ConfigError(f"export: found {board!r}, expected one of {', '.join(get_args(Board))}")
    if kind not in FORMATS:
        raise ConfigError(f"--format: found {kind!r}, expected one of {', '.join(FORMATS)}")
    typer.echo(FORMATS[kind](export_rows(found, read_results(results or []))), nl=False)


admin = typer.Typer(
    help="The service's users, tokens and log, for who runs it: needs the database, not the "
    "service.",
    no_args_is_help=True,
)
users = typer.Typer(help="Those who may submit.", no_args_is_help=True)
tokens = typer.Typer(help="What lets them in: shown once, kept as a hash.", no_args_is_help=True)
app.add_typer(admin, name="admin")
admin.add_typer(users, name="user")
admin.add_typer(tokens, name="token")

StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Folder of results, whose own database is meant.")
]
Handle = Annotated[str, typer.Argument(metavar="HANDLE", help="The user's name on the board.")]


@users.command("add")
def _add_user(
    handle: Handle,
    name: Annotated[str, typer.Option(help="A longer name to show.")] = "",
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Make a user; give them a token with: admin token add HANDLE."""
    with _open(database, store) as engine:
        from leaderboard.accounts import create_user  # noqa: PLC0415

        user = create_user(engine, handle, name)
        typer.echo(f"{user.handle}: made")


@users.command("list")
def _list_users(
    as_json: AsJson = False, database: DatabaseUrl = None, store: StoreFolder = None
) -> None:
    """List all users, by handle."""
    with _open(database, store) as engine:
        from leaderboard.accounts import list_users  # noqa: PLC0415

        _print([asdict(user) for user in list_users(engine)], as_json)


@users.command("disable")
def _disable_user(
    handle: Handle,
    undo: Annotated[bool, typer.Option("--undo", help="Let their tokens in again.")] = False,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Let none of a user's tokens in from now on; their entries stay."""
    with _open(database, store) as engine:
        from leaderboard.accounts import set_disabled  # noqa: PLC0415

        set_disabled(engine, handle, disabled=not undo)
        typer.echo(f"{handle}: {'enabled' if undo else 'disabled'}")


@tokens.command("add")
def _add_token(
    handle: Handle,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="submit, read or admin; may be repeated. Else submit and read."),
    ] = None,
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    days: Annotated[int, typer.Option(help="Lets nobody in after so many.", min=1, max=3650)] = 365,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Make a token and print it, this once: only its hash is kept."""
    with _open(database, store) as engine:
        from leaderboard.accounts import create_token  # noqa: PLC0415

        expires = datetime.now(UTC) + timedelta(days=days)
        scopes = scope or ["submit", "read"]
        typer.echo(create_token(engine, handle, scopes, label=label, expires_at=expires))
        sys.stderr.write(f"lets {handle} in until {expires:%F}; it is not shown again\n")


@tokens.command("list")
def _list_tokens(
    handle: Annotated[
        str | None, typer.Argument(metavar="[HANDLE]", help="Only this user's.")
    ] = None,
    as_json: AsJson = False,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """List tokens by what is no secret of them."""
    with _open(database, store) as engine:
        from leaderboard.accounts import list_tokens  # noqa: PLC0415

        rows = [asdict(token) for token in list_tokens(engine, handle)]
        _print([row | {"scopes": sorted(row["scopes"])} for row in rows], as_json)


@tokens.command("revoke")
def _revoke_token(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="The eight characters that the list shows.")
    ],
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Let a token in no more."""
    with _open(database, store) as engine:
        from leaderboard.accounts import revoke_token  # noqa: PLC0415

        revoke_token(engine, prefix)
        typer.echo(f"{prefix}: revoked")


@admin.command("events")
def _events(
    after: Annotated[
        int, typer.Option(help="Only what follows this number.", min=0, max=2**31)
    ] = 0,
    limit: Annotated[int, typer.Option(help="The most to print.", min=1, max=10**6)] = 100,
    kind: Annotated[str | None, typer.Option(help="Only these: entry.filed, …")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Instead: is every event as it was written?")
    ] = False,
    as_json: AsJson = False,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Print the log, oldest first. Each event carries a hash of itself and of all before it."""
    with _open(database, store) as engine:
        from leaderboard import events  # noqa: PLC0415

        if not check:
            page = events.read(engine, after=after, limit=limit, kind=kind)
            _print([asdict(event) for event in page], as_json)
            return
        chain = events.check_chain(engine)
        if chain.broken_at is not None:
            raise ConfigError(
                f"event {chain.broken_at} is not as it was written, or one before is gone"
            )
        typer.echo(f"{chain.n_events} events, all as they were written; the last is {chain.head}")


@app.command("rebuild-db")
def _rebuild(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of results.")],
    database: DatabaseUrl = None,
) -> None:
    """Make the database's entries again from the folder, which is the truth.

    Users who filed them are made where missing, without a token. Users, tokens, quotas and the
    log that are there stay.
    """
    if not store.is_dir():
        raise ConfigError(f"{store}: no such folder, expected a store")
    with _open(database, store) as engine:
        from leaderboard.index import rebuild  # noqa: PLC0415

        counts = rebuild(engine, store)
        typer.echo(
            f"{counts.entries} entries ({counts.added} added, {counts.removed} removed),"
            f" {counts.users} users made"
        )
        for name in counts.doubled:
            sys.stderr.write(f"{name}: left out, for an earlier entry is of the same upload\n")


@contextmanager
def _open(url: str | None, store: Path | None) -> "Iterator[Engine]":
    try:
        from leaderboard.database import default_url, open_database  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a database needs {error.name}: pip install 'noise-of-web[server]'"
        ) from None

    if not url and store is None:
        raise ConfigError("which database? give --database (NOW_LEADERBOARD_DATABASE) or --store")
    engine = open_database(url or default_url(store or Path()))
    try:
        yield engine
    finally:
        engine.dispose()


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as JSON, or as lines of what is set in them."""
    if as_json:
        typer.echo(json.dumps(rows, default=_plain, indent=2))
        return
    for row in rows:
        shown = (
            f"{name}={_plain(value)}" for name, value in row.items() if value not in (None, "")
        )
        typer.echo("  ".join(shown))


def _plain(value: object) -> str:
    return f"{value:%FT%TZ}" if isinstance(value, datetime) else str(value)


def main() -> None:
    """Entry point."""
    run(app)
