"""The command now-leaderboard; packages are imported by the command that needs them."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from now_builder.errors import ConfigError
from now_builder.program.command_line import Program, run, say_version

app = Program(
    name="now-leaderboard",
    help="Judge a similarity matrix (images x captions) on a Noise-of-Web release: recalls both "
    "ways, rSum with its interval, and a board that shows it beside the paper's rows.",
)
blind = Program(name="now-leaderboard blind", help="Rounds whose pairing only the judge knows.")
app.callback(invoke_without_command=True)(say_version)
_JUDGE, _KEEP = "Judge a matrix", "Keep a board"

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
Store = Annotated[Path, typer.Option(help="Folder of results with the entry.")]
EntryName = Annotated[str, typer.Argument(help="Name of the entry: 12 hexadecimal digits.")]


@app.command(rich_help_panel=_JUDGE)
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
    from leaderboard.submission.archive import new_submission, pack_file, with_details
    from now_builder.config import read_toml, with_overrides

    details = with_overrides(read_toml(about) if about else {}, set_ or [])
    meta = with_details(new_submission(release, track, split, method), details)
    pack_file(output, meta, similarity, image_ids, caption_ids)
    typer.echo(f"{output}: {meta.method.name}, track {meta.track}, {meta.split} of {release}")


@app.command(rich_help_panel=_JUDGE)
def score(
    submission: SubmissionFile,
    release: ReleaseFolder,
    attributes: AttributesFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the result JSON to this file.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check fields, order and numbers; a round's pairing is not needed.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a submission: R@1/5/10 and nDCG@10 both ways, rSum, intervals, ties, references.

    On a release with sites also rSum within sites; if it is split by domain, also across owners and
    within languages, with intervals by owner.

    Nothing is stored except with -o; export-site shows the result, submit files it, as a claim:
    who has the release has its pairing. A blind round, or a keeper's own run, makes it proof.
    """
    from leaderboard.scoring.evaluate import check_submission, score
    from leaderboard.store.entries import write_result
    from leaderboard.terminal import as_text

    if check:
        meta, n_pairs = check_submission(submission, release)
        about = f"track {meta.track}, {n_pairs} pairs of {meta.split}"
        typer.echo(f"{submission}: fine: {meta.method.name}, {about}")
        return
    result = score(submission, release, attributes)
    if output is not None:
        write_result(output, result)
        sys.stderr.write(f"wrote {output}\n")
    typer.echo(result.to_json() if as_json else as_text(result), nl=not as_json)


@app.command(rich_help_panel=_JUDGE)
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A result.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="A result on the same split.")],
    as_json: AsJson = False,
) -> None:
    """Compare results A and B query by query: difference of rSum, interval, tests.

    The interval is by a paired bootstrap over images, p by a sign-flip test: both over owners if
    the release is split by domain, and again within sites. Each recall has McNemar's exact test.
    It does not cover training seeds: run several.
    """
    from leaderboard.scoring.evaluate import compare_results
    from leaderboard.store.entries import read_result
    from leaderboard.terminal import comparison_as_text

    one, other = read_result(first), read_result(second)
    found = compare_results(one, other)
    names = one.method.name, other.method.name
    typer.echo(json.dumps(asdict(found), indent=2) if as_json else comparison_as_text(found, names))


@app.command(rich_help_panel=_JUDGE)
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
    from leaderboard.store.recompute import verify

    if submission is not None and (release is None or len(results) > 1):
        raise ConfigError("--submission: expected one result, and --release")
    wrong = 0
    for path in results:
        result = read_result(path)
        found = verify(path, result, submission, release)
        wrong += len(found)
        lines = [f"{path}: {difference}" for difference in found]
        typer.echo("\n".join(lines or [f"{path}: all figures agree"]))
    if wrong:
        raise typer.Exit(1)


@app.command(rich_help_panel=_KEEP)
def submit(
    submission: SubmissionFile,
    release: ReleaseFolder,
    store: Annotated[Path, typer.Option(help="Folder of results, created if missing.")],
    attributes: AttributesFile = None,
    as_json: AsJson = False,
) -> None:
    """Score a submission on its release and file the result in a store.

    The result is an immutable JSON file, named by its content, with the time in a file of its own;
    the same submission filed again is the same entry. A refusal lists every problem and its fix.
    On the board it is a claim; a blind round, or a keeper's own run (reproduce), is proof. Results
    of an open round commit to their files; submit these again, on the closed round, after it.
    """
    from leaderboard.board.display_text import CLAIM
    from leaderboard.core.rounds import round_of
    from leaderboard.scoring.evaluate import score
    from leaderboard.store.entries import check_is_store, file_result, file_round

    check_is_store(store)
    result = score(submission, release, attributes)
    if (opened := round_of(release, result.split)) and not opened.closed:
        file_round(store, opened)
    entry, new = file_result(store, result)
    if as_json:
        typer.echo(entry.result.to_json(), nl=False)
        return
    state = "filed" if new else "already there"
    standing = "" if entry.evidence == "blind" else f"; {CLAIM}"
    typer.echo(f"{entry.name}: {state}: {result.method.name}, rSum {result.rsum:.1f}{standing}")


@app.command(rich_help_panel=_KEEP)
def withdraw(
    name: EntryName,
    store: Store,
    reason: Annotated[str, typer.Option(help="Public reason, shown in its place.")],
) -> None:
    """Withdraw an entry: a tombstone with the reason is filed; the result stays in the store."""
    from leaderboard.store.entries import now, withdraw

    withdraw(store, name, reason, now())
    typer.echo(f"{name}: withdrawn")


@app.command(rich_help_panel=_KEEP)
def reproduce(
    name: EntryName,
    submission: SubmissionFile,
    store: Store,
    release: ReleaseFolder,
    by: Annotated[str, typer.Option(help="Name of the person who ran it again.")],
    commit: Annotated[str | None, typer.Option(help="Commit of the code.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run folder; the hash of its run.toml is recorded.")
    ] = None,
) -> None:
    """File a keeper's own run of an entry: merged into the store, it is proof, or contradicts.

    The entry is reproduced if the 95 % interval of the difference, run less entry, holds zero or
    lies above it, and stands with the run's figures; else it is contradicted, and has no place.
    """
    from leaderboard.store.recompute import Runner, reproduce
    from leaderboard.terminal import comparison_as_text

    filed, compared = reproduce(store, name, submission, release, Runner(by, commit, run))
    typer.echo(comparison_as_text(compared, (f"the run of {filed.by}", f"entry {name}")))
    typer.echo(f"{name}: {'reproduced' if filed.agrees else 'contradicted'}")


@app.command(rich_help_panel=_KEEP)
def export_site(
    site: Annotated[Path, typer.Argument(help="Folder to write; an earlier site is replaced.")],
    results: Annotated[
        list[Path],
        typer.Option(help="A result JSON, or a folder of them (a store). May be repeated."),
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[RESULTS]...", help="More results.")
    ] = None,
    space: Annotated[
        bool,
        typer.Option(
            "--space", help="Add the README.md of a static Space on the Hugging Face hub."
        ),
    ] = False,
) -> None:
    """Write the board as static pages for any host: results and the paper's rows.

    Open SITE/index.html. Pages load nothing from elsewhere and work without scripts; the same
    results give the same bytes. Reports filed by dataset-report become pages too.
    """
    from leaderboard.board.pages import export_site
    from leaderboard.store.dataset import read_reports
    from leaderboard.store.recompute import read_board

    paths = [*results, *(more or [])]
    entries = read_board(paths)
    reports = [report for path in paths for report in read_reports(path)]
    count = export_site(site, entries, reports, space=space)
    typer.echo(f"{site / 'index.html'}: {len(entries)} results, {count} files")


@app.command(rich_help_panel=_KEEP)
def export(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BOARD|X.zip",
            help="jieba, bpe, bert, flickr30k, coco-1k, coco-5k or cc152k; for trec a submission.",
        ),
    ],
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            "--store",
            help="A result JSON, or a store. Without it, only the reported rows.",
        ),
    ] = None,
    kind: Annotated[
        Literal["csv", "json", "md", "tex", "trec"],
        typer.Option("--to", "--format", help="Format; trec is of a submission."),
    ] = "csv",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="For trec: folder to write.")
    ] = None,
    release: Annotated[
        Path | None, typer.Option(help="For trec: the release of the submission.")
    ] = None,
) -> None:
    """Print a board as a table for a spreadsheet, a program, a README or a paper.

    Rows under different training noise, or scored on different data, get separate tables. --to trec
    writes a submission as a TREC run and its qrels for each direction.
    """
    from leaderboard.board.exports import FORMATS, write_trec
    from leaderboard.board.tables import equal_ranks, make_board
    from leaderboard.store.recompute import read_board
    from now_builder.formats.benchmarks import BOARDS

    if kind == "trec":
        if release is None or output is None:
            raise ConfigError("export --to trec: expected X.zip, --release RELEASE and -o FOLDER")
        typer.echo("\n".join(map(str, write_trec(Path(what), release, output))))
        return
    board = next((name for name in BOARDS if name == what), None)
    if board is None:
        raise ConfigError(f"export: found {what!r}, expected one of {', '.join(BOARDS)}")
    entries = read_board(results or [])
    typer.echo(FORMATS[kind](make_board(board, entries, equal_ranks(entries))), nl=False)


@app.command(rich_help_panel=_KEEP)
def dataset_report(
    release: ReleaseArgument,
    as_json: AsJson = False,
    store: Annotated[
        Path | None, typer.Option(help="Also file it in this folder of results, for the board.")
    ] = None,
) -> None:
    """Count duplicates of a release, and the recalls and rSum that a perfect scorer can reach.

    Filed, it gives the board's entries their recalls by language and by site, and the scores of
    knowing only these.
    """
    from leaderboard.store.dataset import dataset_report, file_report
    from leaderboard.store.entries import check_is_store
    from leaderboard.terminal import dataset_text

    if store is not None:
        check_is_store(store)
    report = dataset_report(release)
    if store is not None:
        sys.stderr.write(f"filed {file_report(store, report)}\n")
    typer.echo(report.model_dump_json(indent=2) if as_json else dataset_text(report))


@app.command(rich_help_panel=_KEEP)
def check_store(
    store: Annotated[Path, typer.Argument(help="Folder of results to check.")],
    base: Annotated[
        Path | None,
        typer.Option(help="The folder before the change; none of its files may change."),
    ] = None,
    keeper: Annotated[
        bool,
        typer.Option(
            "--keeper",
            help="For keepers of the store: accept new records that are proof, or decide on it.",
        ),
    ] = False,
    release: Annotated[
        list[Path] | None,
        typer.Option(help="Release to recompute references and counts on. May be repeated."),
    ] = None,
    attributes: AttributesFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a folder of results changed by a pull request; exit code 1 on any problem.

    Every file is validated, every new result recomputed from its ranks; with the release also its
    references, duplicates and fingerprint. Nothing in the folder is executed. Notes on a matrix can
    only be recomputed from the file: verify --submission.
    """
    from leaderboard.store.check_store import check_store

    problems = check_store(
        store, base, keeper=keeper, releases=release or (), attributes=attributes
    )
    if as_json:
        typer.echo(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        lines = [f"{problem.code}: {problem}" for problem in problems]
        typer.echo("\n".join(lines) or f"{store}: fine")
    if problems:
        raise typer.Exit(1)


@blind.command("make")
def make_round(
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
    list of pages and its captures must stay private until the round is closed: who crawls the
    pages again finds the pairing.
    """
    from leaderboard.blind import RoundPlan, make_round

    plan = RoundPlan(pairs, round_, secret_file, with_train, scored, codabench)
    made = make_round(release, out, plan)
    typer.echo(f"{out}: {made.round}, {made.pairs} pairs, commitment {made.commitment}")


@blind.command("close")
def close_round(
    out: Annotated[Path, typer.Argument(help="Folder that `blind make` wrote.")],
) -> None:
    """Publish the pairing: OUT/closed, on which anyone can check and score again.

    sha256sum OUT/closed/blind.json must give the commitment of round.json.
    """
    from leaderboard.blind import close_round

    typer.echo(f"{close_round(out)}: publish it; later scores are not blind")


app.add_typer(blind, name="blind", rich_help_panel=_KEEP)


def main() -> None:
    """Entry point."""
    run(app)
