"""Commands that keep a board: file, check, reproduce and show results."""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from leaderboard.commands.options import (
    AsJson,
    AttributesFile,
    ReleaseArgument,
    ReleaseFolder,
    SubmissionFile,
)
from now_builder.errors import ConfigError


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
    On the board it is a claim; a blind round, or a keeper's own run (reproduce), is proof.
    """
    from leaderboard.scoring.evaluate import score
    from leaderboard.store.entries import NewFiling, check_is_store, file_result

    check_is_store(store)
    result = score(submission, release, attributes)
    # to the microsecond, so that results filed within one second keep their order
    entry, new = file_result(store, result, NewFiling(None, datetime.now(UTC)))
    if as_json:
        typer.echo(entry.result.to_json(), nl=False)
        return
    from leaderboard.board.display_text import CLAIM

    state = "filed" if new else "already there"
    standing = "" if result.release.origin == "blind" else f"; {CLAIM}"
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
    from leaderboard.store.reproduce import Claim, reproduce

    filed, compared = reproduce(store, name, submission, release, Claim(by, commit, run))
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
    from leaderboard.site.export import export_site
    from leaderboard.store.dataset import read_reports
    from leaderboard.store.verify import read_board

    paths = [*results, *(more or [])]
    entries = read_board(paths)
    reports = [report for path in paths for report in read_reports(path)]
    count = export_site(site, entries, reports, space=space)
    typer.echo(f"{site / 'index.html'}: {len(entries)} results, {count} files")


def export(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BOARD|X.zip|RESULT.json",
            help="jieba, bpe, bert, flickr30k, coco-1k, coco-5k or cc152k; for trec a submission, "
            "for hf-results a result.",
        ),
    ],
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            "--store",
            help="A result JSON, or a store. Without it, only the reported rows; for hf-results "
            "the store that proves the result.",
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--to", "--format", help="csv, json, md, tex, bib; trec, hf-results."),
    ] = "csv",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Folder to write, for trec; the model's repository, for hf-results.",
        ),
    ] = None,
    release: Annotated[
        Path | None, typer.Option(help="For trec: the release of the submission.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="For hf-results: the data set on the hub."),
    ] = None,
) -> None:
    """Print a board as a table for a spreadsheet, a program, a README or a paper.

    Rows under different training noise, or scored on different data, get separate tables.
    Citation keys of --to tex are those of --to bib. --to trec writes a submission as a TREC run
    and its qrels for each direction, --to hf-results a result as .eval_results/*.yaml of the
    Hugging Face hub.
    """
    from leaderboard.board.exports import FORMATS, rows_of
    from leaderboard.site.pages import Site
    from leaderboard.store.verify import read_board
    from now_builder.formats.benchmarks import BOARDS

    if kind == "trec":
        _export_trec(Path(what), release, output)
        return
    if kind == "hf-results":
        _export_hub_results(Path(what), results or [], dataset, output)
        return
    found = next((name for name in BOARDS if name == what), None)
    if found is None:
        raise ConfigError(f"export: found {what!r}, expected one of {', '.join(BOARDS)}")
    if kind not in FORMATS:
        kinds = ", ".join((*FORMATS, "trec", "hf-results"))
        raise ConfigError(f"--to: found {kind!r}, expected one of {kinds}")
    typer.echo(FORMATS[kind](rows_of(Site(read_board(results or [])).board(found))), nl=False)


def _export_trec(submission: Path, release: Path | None, output: Path | None) -> None:
    from leaderboard.scoring.trec import write_trec

    if release is None or output is None:
        raise ConfigError("export --to trec: expected X.zip, --release RELEASE and -o FOLDER")
    typer.echo("\n".join(map(str, write_trec(submission, release, output))))


def _export_hub_results(
    result: Path, results: list[Path], dataset: str | None, output: Path | None
) -> None:
    from leaderboard.board.hub_results import write_hub_results
    from leaderboard.store.entries import entry_of, read_result
    from leaderboard.store.verify import read_board

    if dataset is None or output is None:
        wanted = "expected RESULT.json, --dataset USER/NAME and -o REPOSITORY"
        raise ConfigError(f"export --to hf-results: {wanted}")
    own, found = entry_of(read_result(result)), read_board(results)
    entry = next((entry for entry in found if entry.name == own.name), own)
    typer.echo(write_hub_results(entry, dataset, output))


def dataset_report(
    release: ReleaseArgument,
    as_json: AsJson = False,
    store: Annotated[
        Path | None, typer.Option(help="Also file it in this folder of results, for the board.")
    ] = None,
    captions: Annotated[
        bool,
        typer.Option("--captions", help="Captions of dev and test too, if you may publish them."),
    ] = False,
    captures: Annotated[
        Path | None,
        typer.Option(help="Small screenshots of dev and test too, if the release's licence lets."),
    ] = None,
) -> None:
    """Count duplicates and leaks of a release, and the rSum that a perfect scorer can reach.

    Filed, it gives the board's entries their recalls by language and by site, and the queries that
    they missed: their rows, captions with --captions, and screenshots with --captures.
    """
    from leaderboard.commands.terminal import dataset_text
    from leaderboard.store.dataset import dataset_report, file_report
    from leaderboard.store.entries import check_is_store

    if store is not None:
        check_is_store(store)
    report = dataset_report(release, captions=captions, captures=captures)
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
            help="For keepers of the store: accept new tombstones, runs and blind results.",
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
    references, duplicates and fingerprint. Nothing in the folder is executed. Flags of a matrix can
    only be recomputed from the file: verify --submission.
    """
    from leaderboard.store.check_store import Trust, check_store

    trust = Trust(keeper, tuple(release or []), attributes)
    problems = check_store(store, base, trust)
    if as_json:
        typer.echo(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        lines = [f"{problem.code}: {problem}" for problem in problems]
        typer.echo("\n".join(lines) or f"{store}: fine")
    if problems:
        raise typer.Exit(1)
