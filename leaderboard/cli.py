"""The command now-leaderboard; each command imports its packages when it runs."""

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
    help="Score a similarity matrix (images x captions) on a Noise-of-Web release, and keep a "
    "leaderboard of the results, with the rows of the paper.",
)
blind = Program(name="now-leaderboard blind", help="Rounds with a secret pairing.")
app.callback(invoke_without_command=True)(say_version)
_SCORE, _KEEP = "Score a matrix", "Keep a leaderboard"

SubmissionFile = Annotated[
    Path, typer.Argument(metavar="X.zip", help="Submission, made by pack or pc2-baseline predict.")
]
ReleaseFolder = Annotated[
    Path, typer.Option("--release", help="Release of the submission: rebuilt, or the authors'.")
]
AttributesFile = Annotated[
    Path | None,
    typer.Option(
        help="CSV or Parquet file with key or url, and lang, topic or ocr; adds reference scores."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReleaseArgument = Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of the release.")]
Store = Annotated[Path, typer.Option(help="Folder of results with the entry.")]
EntryName = Annotated[str, typer.Argument(help="Name of the entry: 12 hexadecimal digits.")]


@app.command(rich_help_panel=_SCORE)
def pack(
    similarity: Annotated[
        Path, typer.Argument(metavar="SIMILARITY.npy", help="Matrix of images x captions.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Submission to write (.zip).")],
    release: ReleaseFolder,
    track: Annotated[str, typer.Option(help="Track: jieba, bpe, bert, flickr30k, coco or cc152k.")],
    method: Annotated[str, typer.Option(help="Name shown on the board.")],
    split: Annotated[str, typer.Option(help="Split: test, or dev for model selection.")] = "test",
    image_ids: Annotated[
        Path | None, typer.Option(help="File with the key of each row, one per line.")
    ] = None,
    caption_ids: Annotated[
        Path | None, typer.Option(help="File with the key of each column, one per line.")
    ] = None,
    about: Annotated[
        Path | None, typer.Option(help="TOML file with details about the method.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Detail, such as training.ensemble_size=2. Repeatable."),
    ] = None,
) -> None:
    """Check, describe and zip a matrix from any framework as a submission.

    Rows and columns are in the order of the split, or are reordered by --image-ids and
    --caption-ids. The submission records the fingerprint and keys of the release, so that a matrix
    made on another release, or in another order, is an error instead of a low score. Use float32:
    float16 causes ties.

    Details are authors, affiliation, [links], [training], [postprocessing] and [compute].
    """
    from leaderboard.submission.archive import new_submission, pack_file, with_details
    from now_builder.config import read_toml, with_overrides

    details = with_overrides(read_toml(about) if about else {}, set_ or [])
    meta = with_details(new_submission(release, track, split, method), details)
    pack_file(output, meta, similarity, image_ids, caption_ids)
    typer.echo(f"{output}: {meta.method.name}, track {meta.track}, {meta.split} of {release}")


@app.command(rich_help_panel=_SCORE)
def score(
    submission: SubmissionFile,
    release: ReleaseFolder,
    attributes: AttributesFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Result file (JSON) to write as well.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the submission, without a round's pairing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a submission: R@1/5/10 and nDCG@10 both ways, rSum, intervals, ties, references.

    On a release with sites, rSum within sites is added. If the release is split by domain, rSum
    across owners and within languages is added, and intervals are by owner.

    Nothing is stored without -o. To show the result on a board, use export-site or submit. It is a
    claim there, since everybody with the release has the pairing. A blind round, or a run by the
    board's keepers, is proof.
    """
    from leaderboard.scoring.evaluate import check_submission, score
    from leaderboard.store.entries import write_result
    from leaderboard.terminal import as_text

    if check:
        meta, n_pairs = check_submission(submission, release)
        about = f"track {meta.track}, {n_pairs} pairs of {meta.split}"
        typer.echo(f"{submission}: valid: {meta.method.name}, {about}")
        return
    result = score(submission, release, attributes)
    if output is not None:
        write_result(output, result)
        sys.stderr.write(f"wrote {output}\n")
    typer.echo(result.to_json() if as_json else as_text(result), nl=not as_json)


@app.command(rich_help_panel=_SCORE)
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Result file.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Result on the same split.")],
    as_json: AsJson = False,
) -> None:
    """Compare two results query by query: rSum of A minus rSum of B, interval, tests.

    The interval comes from a paired bootstrap over images, p from a sign-flip test. Both are over
    owners if the release is split by domain, and repeated within sites. Each recall has McNemar's
    exact test. Variation between training seeds is not covered: run several seeds.
    """
    from leaderboard.scoring.evaluate import compare_results
    from leaderboard.store.entries import read_result
    from leaderboard.terminal import comparison_as_text

    one, other = read_result(first), read_result(second)
    compared = compare_results(one, other)
    text = comparison_as_text(compared, (one.method.name, other.method.name))
    typer.echo(json.dumps(asdict(compared), indent=2) if as_json else text)


@app.command(rich_help_panel=_SCORE)
def verify(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT.json...", help="Result files.")],
    submission: Annotated[
        Path | None, typer.Option(help="Submission to score again; requires --release.")
    ] = None,
    release: Annotated[
        Path | None, typer.Option(help="Release to compare fingerprints with, and to score on.")
    ] = None,
) -> None:
    """Recompute every figure of results from their ranks; exit with 1 if one differs."""
    from leaderboard.store.entries import read_result
    from leaderboard.store.recompute import verify

    if submission is not None and (release is None or len(results) > 1):
        raise ConfigError("--submission: expected one result, and --release")
    failed = False
    for path in results:
        lines = [f"{path}: {d}" for d in verify(path, read_result(path), submission, release)]
        typer.echo("\n".join(lines or [f"{path}: all figures agree"]))
        failed |= bool(lines)
    if failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=_KEEP)
def submit(
    submission: SubmissionFile,
    release: ReleaseFolder,
    store: Annotated[Path, typer.Option(help="Folder of results, created if missing.")],
    attributes: AttributesFile = None,
    as_json: AsJson = False,
) -> None:
    """Score a submission on its release and file the result in a folder of results.

    The result is a JSON file named after the hash of its content; the time is in a second file.
    Filing the same submission again changes nothing. On the board the result is a claim; a blind
    round, or a run by the board's keepers (reproduce), is proof. After a blind round, submit the
    same file again on the closed round.
    """
    from leaderboard.core.rounds import round_of
    from leaderboard.scoring.evaluate import score
    from leaderboard.store.entries import check_is_store, file_result, file_round
    from leaderboard.terminal import CLAIM

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
    reason: Annotated[str, typer.Option(help="Public reason, shown instead of the entry.")],
) -> None:
    """Withdraw an entry: file the reason. The result stays in the folder."""
    from leaderboard.store.entries import now, withdraw

    withdraw(store, name, reason, now())
    typer.echo(f"{name}: withdrawn")


@app.command(rich_help_panel=_KEEP)
def reproduce(
    name: EntryName,
    submission: SubmissionFile,
    store: Store,
    release: ReleaseFolder,
    by: Annotated[str, typer.Option(help="Name of the person who repeated the run.")],
    commit: Annotated[str | None, typer.Option(help="Commit of the code.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run folder, to record the hash of its run.toml.")
    ] = None,
) -> None:
    """File a repeated run of an entry by the board's keepers: it proves or contradicts the entry.

    If the 95 % interval of the difference (run minus entry) contains zero or lies above it, the
    entry is reproduced, and ranked by the figures of the run. Otherwise it is contradicted, and has
    no place.
    """
    from leaderboard.store.recompute import Runner, reproduce
    from leaderboard.terminal import comparison_as_text

    filed, compared = reproduce(store, name, submission, release, Runner(by, commit, run))
    typer.echo(comparison_as_text(compared, (f"the run of {filed.by}", f"entry {name}")))
    typer.echo(f"{name}: {'reproduced' if filed.agrees else 'contradicted'}")


@app.command(rich_help_panel=_KEEP)
def export_site(
    site: Annotated[Path, typer.Argument(help="Folder to write; an existing site is replaced.")],
    results: Annotated[
        list[Path], typer.Option(help="Result file, or folder of results. Repeatable.")
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[RESULTS]...", help="More results.")
    ] = None,
    space: Annotated[
        bool, typer.Option("--space", help="Add the README.md of a static Hugging Face Space.")
    ] = False,
) -> None:
    """Write the board as static pages for any host: results and the paper's rows.

    Open SITE/index.html. Pages load nothing from other hosts and work without scripts. The same
    results give the same bytes. Reports filed by dataset-report get pages too.
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
        typer.Option("--results", "--store", help="Result file or folder; default: paper rows."),
    ] = None,
    to: Annotated[
        Literal["csv", "json", "md", "tex", "trec"],
        typer.Option("--to", "--format", help="Format of the table; trec exports a submission."),
    ] = "csv",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write (trec).")
    ] = None,
    release: Annotated[Path | None, typer.Option(help="Release of the submission (trec).")] = None,
) -> None:
    """Print a board as a table for a spreadsheet, a program, a README or a paper.

    Results with different training noise, or on different data, are in separate tables. --to trec
    writes a submission as a TREC run with qrels for each direction.
    """
    from leaderboard.board.exports import FORMATS
    from leaderboard.board.tables import make_board
    from leaderboard.store.entries import equal_ranks
    from leaderboard.store.recompute import read_board
    from leaderboard.submission.trec import write_trec
    from now_builder.formats.benchmarks import BOARDS

    if to == "trec":
        if release is None or output is None:
            raise ConfigError("export --to trec: expected X.zip, --release RELEASE and -o FOLDER")
        typer.echo("\n".join(map(str, write_trec(Path(what), release, output))))
        return
    board = next((name for name in BOARDS if name == what), None)
    if board is None:
        raise ConfigError(f"export: found {what!r}, expected one of {', '.join(BOARDS)}")
    entries = read_board(results or [])
    typer.echo(FORMATS[to](make_board(board, entries, equal_ranks(entries))), nl=False)


@app.command(rich_help_panel=_KEEP)
def dataset_report(
    release: ReleaseArgument,
    as_json: AsJson = False,
    store: Annotated[
        Path | None, typer.Option(help="Folder of results to file the report in.")
    ] = None,
) -> None:
    """Count the duplicates of a release, and compute the rSum that a perfect scorer can reach.

    With --store, the board shows recalls by language and by site for its entries, and the reference
    scores that use only language and site.
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
        Path | None, typer.Option(help="Folder before the change; its files must be unchanged.")
    ] = None,
    keeper: Annotated[
        bool, typer.Option("--keeper", help="Allow new records that only keepers may add (proof).")
    ] = False,
    release: Annotated[
        list[Path] | None,
        typer.Option(help="Release to recompute references and counts on. Repeatable."),
    ] = None,
    attributes: AttributesFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a folder of results changed by a pull request; exit with 1 if there is a problem.

    Every file is validated, and every new result is recomputed from its ranks. With --release, its
    references, duplicates and fingerprint are recomputed too. Nothing in the folder is executed.
    Notes on a matrix require the submission: use verify --submission.
    """
    from leaderboard.store.check_store import check_store

    releases = release or ()
    problems = check_store(store, base, keeper=keeper, releases=releases, attributes=attributes)
    if as_json:
        typer.echo(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        lines = [f"{problem.code}: {problem}" for problem in problems]
        typer.echo("\n".join(lines) or f"{store}: valid")
    if problems:
        raise typer.Exit(1)


@blind.command("make")
def make_round(
    release: ReleaseArgument,
    out: Annotated[Path, typer.Argument(help="Folder to write: participants/ and judge/.")],
    pairs: Annotated[
        int | None, typer.Option(help="Number of test pairs to draw; default: all.")
    ] = None,
    round_: Annotated[str, typer.Option("--round", help="Name of the round.")] = "round",
    secret_file: Annotated[
        Path | None, typer.Option(help="File with a secret (32+ characters); default: random.")
    ] = None,
    with_train: Annotated[
        bool, typer.Option(help="Give participants the train and dev splits of the release.")
    ] = False,
    scored: Annotated[
        int, typer.Option(min=1, help="Number of files that each person may have scored.")
    ] = 5,
    codabench: Annotated[
        Path | None, typer.Option(metavar="BUNDLE.zip", help="Codabench competition to write.")
    ] = None,
) -> None:
    """Write a blind round: images and captions of the test split, each in a secret order.

    Publish OUT/participants. Keep OUT/judge, and score with: score X.zip --release OUT/judge. Keep
    the release, its list of pages, its captures and the Codabench zip private until the round is
    closed: they reveal the pairing. The secret determines the pairs and the orders; use a new one
    for each round.
    """
    from leaderboard.blind import RoundPlan, make_round

    plan = RoundPlan(pairs, round_, secret_file, with_train, scored, codabench)
    made = make_round(release, out, plan)
    typer.echo(f"{out}: {made.round}, {made.pairs} pairs, commitment {made.commitment}")


@blind.command("close")
def close_round(
    out: Annotated[Path, typer.Argument(help="Folder written by `blind make`.")],
) -> None:
    """Publish the pairing: write OUT/closed, so that anyone can check and score again.

    sha256sum OUT/closed/blind.json must equal the commitment in round.json.
    """
    from leaderboard.blind import close_round

    typer.echo(f"{close_round(out)}: publish this folder; later scores are not blind")


app.add_typer(blind, name="blind", rich_help_panel=_KEEP)


def main() -> None:
    """Entry point."""
    run(app)
