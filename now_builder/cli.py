"""Define the command now-builder; fields of settings become options."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from now_builder.build import presets
from now_builder.errors import FormatError, NowError
from now_builder.program.command_line import Fields, Program, run, say_version

app = Program(
    name="now-builder",
    help="Build a Noise-of-Web dataset: URL list -> captures -> region features and token ids -> "
    "release. Every stage resumes after a stop; --force starts it again.",
)
simweb = Program(
    name="now-builder simweb",
    help="A simulated web, served on loopback, with known matches.",
)
pinned = Program(
    name="now-builder pinned",
    help="The pinned web: real sites at fixed commits that everyone can rebuild identically.",
)
app.add_typer(simweb, name="simweb")
app.add_typer(pinned, name="pinned")
app.callback(invoke_without_command=True)(say_version)

Captures = Annotated[Path, typer.Argument(metavar="CAPTURES", help="Folder made by crawl.")]
Release = Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder made by package.")]
Force = Annotated[bool, typer.Option("--force", help="Start again instead of resuming.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")]
ReadyFile = Annotated[
    Path | None, typer.Option(help="File for ADDRESS:PORT, written when the server is ready.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print(result: Any, *, as_json: bool, **more: object) -> None:
    """Print a result as text, or as JSON with additional values."""
    text = json.dumps(asdict(result) | more, ensure_ascii=False) if as_json else str(result)
    typer.echo(text)


@app.command("crawl", kept="finished pages are kept")
def _crawl(
    urls: Annotated[
        Path,
        typer.Argument(
            metavar="URLS",
            help="Text file (one URL a line; # comments; text after a tab is ignored), CSV or TSV "
            "with a column url, or ranks and domains (Tranco), each also as .gz; or Parquet.",
        ),
    ],
    captures: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTURES",
            help="Folder to write: plan.parquet, split.toml, and per shard a tar and a parquet.",
        ),
    ],
    settings: Annotated[Any, Fields("now_builder.crawl.settings:CrawlSettings")],
    force: Force = False,
) -> None:
    """Visit each URL as a phone: screenshot of 720 x 1280 px, meta description, DOM elements.

    Every URL becomes a row, failures with a reason; the exit code is 1 if all failed. Run it
    again to resume.
    """
    from now_builder.crawl.run import crawl

    summary = crawl(urls, captures, settings, force)
    typer.echo(summary)
    summary.check(captures)


@app.command("status")
def _status(
    captures: Annotated[Path, typer.Argument(help="Folder of a crawl, running or not.")],
    as_json: AsJson = False,
) -> None:
    """Show the progress of a crawl: done, to do, rate, time left, reasons."""
    from now_builder.crawl.status import crawl_status

    status = crawl_status(captures)
    _print(status, as_json=as_json, to_do=status.to_do, left_s=status.left_s)


@app.command("label")
def _label(
    captures: Captures,
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="Folder for labels.json (COCO).")
    ],
    settings: Annotated[Any, Fields("now_builder.detect.settings:LabelSettings")],
    force: Force = False,
) -> None:
    """Write the elements of each page as COCO JSON, to train any detector."""
    from now_builder.detect.labels.run import label_captures

    typer.echo(label_captures(captures, labels, settings, force))


@app.command("ocr", kept="the texts of finished shards are kept")
def _ocr(
    captures: Captures,
    output: Annotated[Path, typer.Argument(metavar="OUT.csv", help="The table to write.")],
    languages: Annotated[
        str,
        typer.Option(
            help="Languages, in Tesseract's names; auto: English and each page's own language, "
            "detected from caption and title, else declared."
        ),
    ] = "chi_sim+eng",
    test_of: Annotated[
        Path | None,
        typer.Option(
            metavar="RELEASE",
            help="Release: read only the screenshots of its test pairs, as the reference row "
            "requires.",
        ),
    ] = None,
    elements: Annotated[
        bool,
        typer.Option(
            "--elements",
            help="Text of the page's layout on the first screen instead, in the column text: an "
            "upper bound of reading.",
        ),
    ] = False,
) -> None:
    """Read the text on each screenshot with Tesseract into a table of key and ocr.

    `now-leaderboard score --attributes OUT.csv` uses it for the reference of reading alone. A page
    takes about a second of a core.
    """
    from now_builder.detect.ocr import read_elements, read_screens

    if elements:
        typer.echo(read_elements(captures, output, test_of))
    else:
        typer.echo(read_screens(captures, output, languages, test_of))


@app.command("train-detector", kept="the last checkpoint is kept")
def _train_detector(
    captures: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTURES", help="Folder made by crawl; only its train pool is used."
        ),
    ],
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS",
            help="File to write (.safetensors), next to its .json, .history.jsonl (a line an "
            "epoch) and .pictures/.",
        ),
    ],
    settings: Annotated[Any, Fields("now_builder.detect.settings:TrainDetectorSettings")],
    force: Force = False,
) -> None:
    """Train the APT-style detector; the elements that the browser laid out are the labels."""
    from now_builder.detect.training.run import train_detector

    typer.echo(train_detector(captures, weights, settings, force))


@app.command("measure-detector")
def _measure_detector(
    captures: Captures,
    weights: Annotated[Path, typer.Argument(help="Weights made by train-detector, or tiny-web.")],
    pool: Annotated[
        Literal["train", "dev", "test"], typer.Option(help="Pool of the pages to measure.")
    ] = "test",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all cores.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure a detector on the pages of a pool: AP50, recall@36, overall and by class."""
    from now_builder.detect.training.measure import measure_detector

    _print(measure_detector(captures, weights, pool, device, threads), as_json=as_json)


@app.command("detect", kept="pages that have features are kept")
def _detect(
    captures: Captures,
    features: Annotated[Path, typer.Argument(metavar="FEATURES", help="HDF5 file to write.")],
    settings: Annotated[Any, Fields("now_builder.detect.settings:DetectSettings")],
    force: Force = False,
) -> None:
    """Store 36 regions of 768 numbers for each page, from pixels only."""
    from now_builder.detect.run import detect

    typer.echo(detect(captures, features, settings, force))


@app.command("tokenize", kept="finished tokenizers are kept")
def _tokenize(
    captures: Captures,
    captions: Annotated[Path, typer.Argument(metavar="CAPTIONS", help="Folder to write.")],
    settings: Annotated[Any, Fields("now_builder.tokenize.settings:TokenizeSettings")],
    force: Force = False,
) -> None:
    """Tokenize captions three ways: Jieba, BPE, BERT. Vocabularies come from the train pool.

    Run it again to resume: finished tokenizers with the same settings are kept.
    """
    from now_builder.tokenize.run import tokenize

    typer.echo(tokenize(captures, captions, settings, force))


@app.command("package")
def _package(
    captures: Captures,
    features: Annotated[Path, typer.Argument(metavar="FEATURES", help="File made by detect.")],
    captions: Annotated[Path, typer.Argument(metavar="CAPTIONS", help="Folder made by tokenize.")],
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder to write.")],
    settings: Annotated[
        Any,
        Fields(
            "now_builder.package.settings:PackageSettings",
            {"by": "--split-by", "seed": "--split-seed"},  # as crawl calls them
        ),
    ],
    force: Force = False,
) -> None:
    """Filter, split and write the published layout, with card, Croissant metadata and manifest.

    Options default to the values of an existing release in the folder.
    """
    from now_builder.package.run import package

    manifest = package(captures, features, captions, release, settings, force)
    typer.echo(f"{release}: {manifest.summary}")


@app.command("export", kept="finished files are kept")
def _export(
    release: Release,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    settings: Annotated[Any, Fields("now_builder.export.settings:ExportSettings")],
    force: Force = False,
) -> None:
    """Write a release for another tool: Parquet, WebDataset, OpenCLIP, BEIR or MTEB."""
    from now_builder.export.run import export

    typer.echo(f"{out}: complete, {len(export(release, out, settings, force))} files of pairs")


@app.command("publish", kept="the export and uploaded files are kept")
def _publish(
    release: Release,
    name: Annotated[str, typer.Argument(metavar="USER/NAME", help="Data set on the hub.")],
    settings: Annotated[Any, Fields("now_builder.export.settings:PublishSettings")],
    yes: Annotated[bool, typer.Option("--yes", help="Upload without asking.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Export, list files and bytes; send nothing.")
    ] = False,
    force: Force = False,
) -> None:
    """Upload a release to the Hugging Face hub: card, Croissant, Parquet as from export.

    The export is kept in RELEASE-hub, next to the release. The token comes from hf auth login or
    the environment variable HF_TOKEN. Screenshots are sent only with --captures, and only if the
    release's licence allows copies or package --licensed chose its pages.
    """
    from now_builder.hub.publish import account, prepare, send

    user = None if dry_run else account()
    upload = prepare(release, name, settings, force)
    typer.echo(upload, err=not dry_run)
    if dry_run:
        return
    if not yes and not sys.stdin.isatty():
        raise NowError(
            "no terminal to ask on; nothing was sent. Give --yes to upload without asking"
        )
    if not yes and not typer.confirm(f"Send this to {name} as {user}?", err=True):
        raise NowError("nothing was sent")
    typer.echo(send(upload))


@app.command("fetch-now", kept="downloaded bytes are kept")
def _fetch_now(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write.")],
    endpoint: Annotated[
        str | None,
        typer.Option(help="Address of the hub or a mirror; by default HF_ENDPOINT."),
    ] = None,
    force: Force = False,
) -> None:
    """Download NoW as its authors published it (3.5 GB), check and unpack it.

    Train on it with: pc2-baseline train DIR RUN. Run it again to resume.
    """
    from now_builder.hub.fetch import fetch_now

    typer.echo(fetch_now(folder, endpoint, force))


@app.command("build", kept="finished stages and pages are kept")
def _build(
    urls: Annotated[Path, typer.Argument(help="URL list, as for crawl.")],
    out: Annotated[Path, typer.Argument(help="Folder for captures, features, captions, release.")],
    weights: Annotated[
        Path | None, typer.Option(help="Detector weights; by default tiny-web.")
    ] = None,
    user_agent_url: Annotated[
        str | None,
        typer.Option(help="Your page that says who crawls, as for crawl."),
    ] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Visit private addresses, as for crawl.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings that come with the package. "
            + " ".join(f"{name}: {line}" for name, line in presets().items())
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML with sections crawl, detect, tokenize, package; overrides the preset."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Setting to override, such as crawl.page_timeout_s=8; repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only estimate time and disk of each stage, and list missing programs.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    force: Force = False,
) -> None:
    """Run all stages from URL list to release."""
    from now_builder.build.run import build_release, read_build_settings

    more = [f"detect.weights={weights}"] if weights else []
    more += ["crawl.allow_private=true"] if allow_private else []
    more += [f"crawl.user_agent_url={json.dumps(user_agent_url)}"] if user_agent_url else []
    settings = read_build_settings(preset, config, [*(set_ or []), *more])
    if dry_run:
        from now_builder.build.plan import plan_build

        _print(plan_build(urls, out, settings), as_json=as_json)
        return
    build_release(urls, out, settings, force)


@app.command("verify")
def _verify(release: Release) -> None:
    """Check a release: hashes, counts, shapes, ids, fingerprints.

    Other files in the folder are listed; they are not an error.
    """
    from now_builder.package.verify import unlisted_files, verify

    problems = verify(release)
    if problems:
        raise FormatError(release, "; ".join(problems))
    others = unlisted_files(release)
    typer.echo(f"{release}: complete and unchanged")
    for name in others:
        typer.echo(f"{name}: not part of the release")


@app.command("report")
def _report(
    release: Release,
    settings: Annotated[
        Any, Fields("now_builder.inspect.settings:ReportSettings", {"output": "-o"})
    ],
) -> None:
    """Write an HTML page about a release: figures, and random pairs as pictures."""
    from now_builder.inspect.report import report

    typer.echo(report(release, settings))


@app.command("audit", kept="every verdict is kept")
def _audit(
    release: Release,
    settings: Annotated[
        Any, Fields("now_builder.inspect.settings:AuditSettings", {"output": "-o"})
    ],
    stats: Annotated[
        list[Path] | None,
        typer.Option(
            help="Verdicts to print statistics of (CSV of audit, or CSV/Parquet with key or url, "
            "and matched or verdict; one judge each; repeatable): share of mismatched pairs, "
            "agreement between judges."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Run folder, or CSV/Parquet with key and clean_prob, to compare with --stats."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --stats: print JSON.")] = False,
) -> None:
    """Judge a random sample of pairs on a page that is served on 127.0.0.1 until interrupted.

    package --matched reads the CSV; --stats estimates the share of mismatched pairs.
    """
    from now_builder.inspect.audit import audit
    from now_builder.inspect.stats import audit_stats

    if stats:
        _print(audit_stats(stats, release, run), as_json=as_json)
    else:
        audit(release, settings, typer.echo)


@app.command("doctor")
def _doctor() -> None:
    """List missing programs of each stage, and the command that installs them on Debian."""
    from now_builder.machine import doctor

    findings = doctor.check()
    for finding in findings:
        typer.echo(finding)
    if command := doctor.install_command(findings):
        typer.echo(f"to install: {command}")
    if any(finding.needed and not finding.found for finding in findings):
        raise NowError("a program that the crawl requires is missing (see above)")


@simweb.command("make")
def _simweb_make(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder for urls.txt, truth.parquet and simweb.toml."
        ),
    ],
    settings: Annotated[Any, Fields("now_builder.simweb.settings:SimwebSettings")],
    force: Force = False,
) -> None:
    """Create a simulated web: URL list and truth."""
    from now_builder.simweb.make import make

    typer.echo(make(folder, settings, force=force))


@simweb.command("serve", ends_by_signal=True)
def _simweb_serve(
    folder: Annotated[Path, typer.Argument(help="Folder made by simweb make.")],
    port: Port = 8765,
    ready_file: ReadyFile = None,
    latency_ms: Annotated[int, typer.Option(min=0, help="Delay of every answer in ms.")] = 0,
) -> None:
    """Serve a simulated web on loopback until interrupted.

    Crawl it with: now-builder crawl FOLDER/urls.txt CAPTURES --allow-private
    --resolve '*.test:127.0.0.1:8765'
    """
    from now_builder.simweb.answer import serve

    serve(folder, port, ready_file=ready_file, latency_s=latency_ms / 1000)


@pinned.command("make", kept="finished sites are kept")
def _pinned_make(
    web: Annotated[
        Path,
        typer.Argument(metavar="WEB", help="Folder for the sites, urls.txt and sites.csv."),
    ],
    sites: Annotated[
        int | None, typer.Option(min=1, help="Number of sites, drawn at random; by default all.")
    ] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", help="List of sites; by default the one of the package."),
    ] = None,
    mirrors: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder of mirrors (owner+name or owner/name.git), instead of the network.",
        ),
    ] = None,
    only: Annotated[
        Path | None, typer.Option(help="Text file of repositories to use, one owner/name a line.")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Languages of the sites to use, such as zh,ko.")
    ] = None,
    pages: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Maximum pages of each site; by default the list's 20."),
    ] = None,
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Limit the largest kind of site in a language to a third."),
    ] = False,
    force: Force = False,
) -> None:
    """Fetch sites at their commits (git), lay them out, and list their pages with a description.

    A site that cannot be fetched is a row of sites.csv with a reason. Run it again to resume, or
    to try failed sites again.
    """
    from now_builder.pinned.git import Source
    from now_builder.pinned.make import Choice, make
    from now_builder.pinned.sites import LIST

    named = [name.strip() for name in (languages or "").split(",") if name.strip()]
    choice = Choice(sites, only, named, pages, balanced)
    typer.echo(make(web, listed or LIST, choice, Source(mirrors), force=force))


@pinned.command("serve", ends_by_signal=True)
def _pinned_serve(
    web: Annotated[Path, typer.Argument(metavar="WEB", help="Folder made by pinned make.")],
    port: Port = 8765,
    ready_file: ReadyFile = None,
) -> None:
    """Serve a pinned web on loopback until interrupted, each site under its own host name.

    Crawl it with: now-builder crawl WEB/urls.txt CAPTURES --allow-private
    --resolve '*.test:127.0.0.1:8765' --only '*.test'
    """
    from now_builder.pinned.serve import serve

    serve(web, port, ready_file=ready_file)


def main() -> None:
    """Run the command line."""
    run(app)
