"""Commands that keep a board: file, check, reproduce and show results."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from leaderboard.commands.judge import AsJson, AttributesFile, ReleaseFolder, SubmissionFile
from now_builder.errors import ConfigError

ReleaseArgument = Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of the release.")]


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
    if (blind := round_of(release, result.split)) and not blind.closed:
        file_round(store, blind)
    entry, new = file_result(store, result)
    if as_json:
        typer.echo(entry.result.to_json(), nl=False)
        return
    state = "filed" if new else "already there"
    standing = "" if entry.evidence == "blind" else f"; {CLAIM}"
    typer.echo(f"{entry.name}: {state}: {result.method.name}, rSum {result.rsum:.1f}{standing}")


def withdraw(
    name: Annotated[str, typer.Argument(help="Name of the entry: 12 hexadecimal digits.")],
    store: Annotated[Path, typer.Option(help="Folder of results with the entry.")],
    reason: Annotated[str, typer.Option(help="Public reason, shown in its place.")],
) -> None:
    """Withdraw an entry: a tombstone with the reason is filed; the result stays in the store."""
    from leaderboard.store.entries import now, withdraw

    withdraw(store, name, reason, now())
    typer.echo(f"{name}: withdrawn")


def reproduce(
    name: Annotated[str, typer.Argument(help="Name of the entry: 12 hexadecimal digits.")],
    submission: SubmissionFile,
    store: Annotated[Path, typer.Option(help="Folder of results with the entry.")],
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
    from leaderboard.commands.terminal import comparison_as_text
    from leaderboard.store.recompute import Runner, reproduce

    filed, compared = reproduce(store, name, submission, release, Runner(by, commit, run))
    typer.echo(comparison_as_text(compared, (f"the run of {filed.by}", f"entry {name}")))
    typer.echo(f"{name}: {'reproduced' if filed.agrees else 'contradicted'}")


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
    """Write the board as static pages for any host: results beside the paper's rows.

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
        str, typer.Option("--to", "--format", help="csv, json, md, tex; trec.")
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
    if kind not in FORMATS:
        kinds = ", ".join((*FORMATS, "trec"))
        raise ConfigError(f"--to: found {kind!r}, expected one of {kinds}")
    entries = read_board(results or [])
    typer.echo(FORMATS[kind](make_board(board, entries, equal_ranks(entries))), nl=False)


def dataset_report(
    release: ReleaseArgument,
    as_json: AsJson = False,
    store: Annotated[
        Path | None, typer.Option(help="Also file it in this folder of results, for the board.")
    ] = None,
) -> None:
    """Count duplicates and leaks of a release, and the rSum that a perfect scorer can reach.

    Filed, it gives the board's entries their recalls by language and by site, and the scores of
    knowing only these.
    """
    from leaderboard.commands.terminal import dataset_text
    from leaderboard.store.dataset import dataset_report, file_report
    from leaderboard.store.entries import check_is_store

    if store is not None:
        check_is_store(store)
    report = dataset_report(release)
    if store is not None:
        sys.stderr.write(f"filed {file_report(store, report)}\n")
    typer.echo(report.to_json() if as_json else dataset_text(report), nl=not as_json)


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
    blind = make_round(release, out, plan)
    typer.echo(f"{out}: {blind.round}, {blind.pairs} pairs, commitment {blind.commitment}")


def close_round(
    out: Annotated[Path, typer.Argument(help="Folder that `blind make` wrote.")],
) -> None:
    """Publish the pairing: OUT/closed, on which anyone can check and score again.

    sha256sum OUT/closed/blind.json must give the commitment of round.json.
    """
    from leaderboard.blind import close_round

    typer.echo(f"{close_round(out)}: publish it; later scores are not blind")
