"""The command now-builder: one verb per stage; settings become options by their descriptions."""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import PydanticUndefined

from now_builder import __version__
from now_builder.build import BuildSettings
from now_builder.command_line import run
from now_builder.config import Strict, build, read_toml, with_overrides
from now_builder.crawl.settings import CrawlSettings
from now_builder.detect.settings import DetectSettings, LabelSettings, TrainDetectorSettings
from now_builder.errors import FormatError, NowError
from now_builder.formats.split import Split
from now_builder.inspect.settings import AuditSettings, ReportSettings
from now_builder.package.settings import PackageSettings, ParquetSettings
from now_builder.simweb.settings import SimwebSettings
from now_builder.tokenize.settings import TokenizeSettings

app = typer.Typer(
    name="now-builder",
    help="Build a Noise-of-Web dataset: URL list -> captures -> region features and token ids -> "
    "release. Every stage may be killed and run again; --force starts it over.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
simweb = typer.Typer(
    help="A simulated web, served on loopback, whose true correspondence is known.",
    no_args_is_help=True,
)
app.add_typer(simweb, name="simweb")

Force = Annotated[bool, typer.Option("--force", help="Start over instead of going on.")]


def _stage(
    group: typer.Typer,
    verb: str,
    settings: type[Strict],
    arguments: dict[str, str],
    text: Collection[str] = (),
    short: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb with path arguments, an option per field of ``settings``, and ``--force``.

    The decorated function is called with the paths in order, the settings, and force.

    Args:
        group: Where the verb is added.
        verb: Its name.
        settings: The frozen settings class of the stage.
        arguments: Names and help texts of the path arguments.
        text: Those of them that may be URLs, and are given as text.
        short: One-letter options by field; a verb that has them takes no ``--force``, since it
            only looks at what stands.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            paths = [values.pop(name) for name in arguments]
            force = [values.pop("force")] if short is None else []
            function(*paths, build(settings, values, f"now-builder {verb}"), *force)

        parameters = [
            _parameter(
                name,
                str if name in text else Path,
                typer.Argument(metavar=name.upper(), help=about),
            )
            for name, about in arguments.items()
        ]
        parameters += [
            _option(name, field, (short or {}).get(name))
            for name, field in settings.model_fields.items()
        ]
        if short is None:
            parameters.append(_parameter("force", Force, default=False))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        command.__doc__ = function.__doc__
        group.command(verb)(command)
        return function

    return register


def _parameter(
    name: str, kind: Any, info: Any = None, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info] if info is not None else kind,
    )


def _option(name: str, field: Any, short: str | None = None) -> inspect.Parameter:
    flag = "--" + name.rstrip("_").replace("_", "-")  # with_: a keyword is no name of a parameter
    if field.annotation in (bool, bool | None):
        flag = f"{flag}/--no-{flag[2:]}"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        default = inspect.Parameter.empty
    flags = [flag, *([short] if short else [])]
    return _parameter(name, field.annotation, typer.Option(*flags, help=field.description), default)


def _load(module: str, name: str) -> Any:
    """Import a stage only when it runs, so that --help is quick."""
    return getattr(import_module(f"now_builder.{module}"), name)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print it.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@_stage(
    app,
    "crawl",
    CrawlSettings,
    {
        "urls": "Text file (one URL a line, # comments), or CSV/Parquet with a column url.",
        "captures": "Folder to write: plan.parquet, split.toml, and per shard a tar and a parquet; "
        "or the URL of one, such as s3://bucket/now.",
    },
    text=frozenset({"captures"}),
)
def _crawl(urls: Path, captures: str, settings: CrawlSettings, force: bool) -> None:
    """Visit each URL with a phone: screenshot of 720 x 1280 px, meta description, DOM elements.

    Every URL ends as one row, failures with a reason. Run it again to go on after a stop.
    """
    typer.echo(_load("crawl.run", "crawl")(urls, captures, settings, force))


@app.command("status")
def _status(
    captures: Annotated[
        str, typer.Argument(help="Folder of a crawl, running or not, or its URL (s3://...).")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how far a crawl is, from its files alone: done, to do, reasons, captions, languages."""
    found = _load("crawl.status", "crawl_status")(captures)
    typer.echo(json.dumps({**asdict(found), "to_do": found.to_do}) if as_json else str(found))


@_stage(
    app,
    "label",
    LabelSettings,
    {
        "captures": "Folder made by crawl.",
        "labels": "Folder to write: labels.json (COCO), statistics.json, report.html.",
    },
)
def _label(captures: Path, labels: Path, settings: LabelSettings, force: bool) -> None:
    """Label the elements of each page as COCO JSON, with statistics and a page that shows them."""
    typer.echo(_load("detect.labels.run", "label_captures")(captures, labels, settings, force))


@_stage(
    app,
    "train-detector",
    TrainDetectorSettings,
    {
        "captures": "Folder made by crawl, whose train pool alone is learned from; with --coco it "
        "may be a folder of images.",
        "weights": "File to write (.safetensors); beside it appear its .json, .history.jsonl (a "
        "line an epoch) and .pictures/.",
    },
)
def _train_detector(
    captures: Path,
    weights: Path,
    settings: TrainDetectorSettings,
    force: bool,
) -> None:
    """Train the APT-style detector: the browser's own elements are the labels, or a COCO file."""
    typer.echo(_load("detect.training.train", "train_detector")(captures, weights, settings, force))


@app.command("measure-detector")
def _measure_detector(
    captures: Annotated[Path, typer.Argument(help="Folder made by crawl.")],
    weights: Annotated[Path, typer.Argument(help="Weights made by train-detector.")],
    pool: Annotated[Split, typer.Option(help="Whose pages are measured.")] = "test",
    seed: Annotated[int, typer.Option(min=0, help="Changes the random boxes.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 takes all cores.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a detector on a pool (AP50, recall@36) between DOM boxes above and random below."""
    found = _load("detect.training.bounds", "measure_detector")(
        captures, weights, pool, seed=seed, device=device, threads=threads
    )
    typer.echo(json.dumps(found.tree, ensure_ascii=False) if as_json else str(found))


@_stage(
    app,
    "detect",
    DetectSettings,
    {"captures": "Folder made by crawl.", "features": "HDF5 file to write."},
)
def _detect(captures: Path, features: Path, settings: DetectSettings, force: bool) -> None:
    """Store 36 regions of 768 numbers for each page: visual only, never the page's text."""
    typer.echo(_load("detect.run", "detect")(captures, features, settings, force))


@_stage(
    app,
    "tokenize",
    TokenizeSettings,
    {"captures": "Folder made by crawl.", "captions": "Folder to write."},
)
def _tokenize(captures: Path, captions: Path, settings: TokenizeSettings, force: bool) -> None:
    """Turn captions into ids three ways: Jieba, BPE, BERT. Vocabularies see the train pool only.

    Run it again to go on after a stop: what stands and fits is left alone.
    """
    typer.echo(_load("tokenize.run", "tokenize")(captures, captions, settings, force))


@_stage(
    app,
    "package",
    PackageSettings,
    {
        "captures": "Folder made by crawl.",
        "features": "File made by detect.",
        "captions": "Folder made by tokenize.",
        "release": "Folder to write.",
    },
)
def _package(
    captures: Path,
    features: Path,
    captions: Path,
    release: Path,
    settings: PackageSettings,
    force: bool,
) -> None:
    """Filter, split and write the published layout, with card, Croissant metadata and manifest."""
    manifest = _load("package.run", "package")(
        captures, features, captions, release, settings, force
    )
    counts = ", ".join(f"{split} {count}" for split, count in manifest.counts.items())
    typer.echo(f"{release}: {counts} pairs; {sum(manifest.rejects.values())} rejects")


@_stage(
    app,
    "export-parquet",
    ParquetSettings,
    {"release": "Folder made by package.", "out": "Folder to write, ready for the hub."},
)
def _export_parquet(release: Path, out: Path, settings: ParquetSettings, force: bool) -> None:
    """Write a release as Parquet that `datasets.load_dataset(OUT)` reads, screenshots included."""
    files = _load("package.parquet", "export_parquet")(release, out, settings, force)
    typer.echo(f"{out}: {sum(files.values())} pairs in {len(files)} files")


@app.command("build")
def _build(
    urls: Annotated[Path, typer.Argument(help="URL list, as for crawl.")],
    out: Annotated[Path, typer.Argument(help="Folder for captures, features, captions, release.")],
    weights: Annotated[
        Path | None, typer.Option(help="Detector weights; without them the tiny one is trained.")
    ] = None,
    matched: Annotated[
        Path | None, typer.Option(help="Judged pairs, as for package: dev and test match.")
    ] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Visit private addresses, as for crawl.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="TOML with sections crawl, train_detector, detect …")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting: crawl.page_timeout_s=8. May be repeated."),
    ] = None,
    force: Force = False,
) -> None:
    """Run all stages: URL list to release. Without --weights the tiny detector is trained first."""
    tree = with_overrides(read_toml(config) if config else {}, set_ or [])
    short = {"detect.weights": weights, "package.matched": matched}
    tree = with_overrides(tree, [f"{name}={path}" for name, path in short.items() if path])
    if allow_private:
        tree = with_overrides(tree, ["crawl.allow_private=true"])
    settings = build(BuildSettings, tree, str(config or "now-builder build"))
    _load("build", "build_release")(urls, out, settings, force)


@app.command("verify")
def _verify(
    folder: Annotated[
        Path, typer.Argument(help="Release made by package; captures made by crawl for --recheck.")
    ],
    recheck: Annotated[
        bool,
        typer.Option("--recheck", help="Read the sources again with BeautifulSoup, and compare."),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(help="Pages to read again, drawn at random; all by default.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="Changes which pages are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a release: hashes, counts, shapes, ids, fingerprints. Or the captions of captures."""
    if recheck:
        _recheck(folder, sample, seed, as_json=as_json)
        return
    if not (folder / "manifest.json").exists() and (folder / "plan.parquet").exists():
        raise FormatError(folder, "captures, not a release; --recheck reads their captions again")
    problems = _load("package.run", "verify")(folder)
    if problems:
        raise FormatError(folder, "; ".join(problems))
    typer.echo(f"{folder}: complete and unchanged")


def _recheck(captures: Path, sample: int | None, seed: int, *, as_json: bool) -> None:
    found = _load("inspect.recheck", "recheck")(captures, sample, seed)
    if as_json:
        typer.echo(json.dumps(found.as_json(), ensure_ascii=False, indent=2))
    else:
        for one in found.disagreements:
            typer.echo(one)
    if found.disagreements:
        raise FormatError(
            captures, f"{len(found.disagreements)} of {found.pages} captions are read differently"
        )
    if not as_json:
        typer.echo(f"{captures}: {found.pages} captions are read the same")


@_stage(
    app,
    "report",
    ReportSettings,
    {"release": "Folder made by package."},
    short={"output": "-o"},
)
def _report(release: Path, settings: ReportSettings) -> None:
    """Write one HTML page to look at a release: its numbers, and random pairs as pictures."""
    typer.echo(_load("inspect.report", "report")(release, settings))


@_stage(
    app,
    "audit",
    AuditSettings,
    {"release": "Folder made by package."},
    short={"output": "-o"},
)
def _audit(release: Path, settings: AuditSettings) -> None:
    """Judge a random sample of pairs by hand, on a page served on 127.0.0.1 until interrupted.

    package --matched reads the CSV; audit-stats tells what it says.
    """
    _load("inspect.audit", "audit")(release, settings, typer.echo)


@app.command("audit-stats")
def _audit_stats(
    audits: Annotated[list[Path], typer.Argument(help="CSV files of audit, one a judge.")],
    release: Annotated[
        Path | None, typer.Option(help="Release that was judged; needed with a run folder.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Run folder, or CSV/Parquet with key and clean_prob, to compare with."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what judges found: the noise ratio with its interval, and who agrees with whom."""
    found = _load("inspect.stats", "audit_stats")(audits, release, run)
    typer.echo(json.dumps(found.as_json()) if as_json else str(found))


@app.command("doctor")
def _doctor(
    mend: Annotated[bool, typer.Option(help="Install what may be installed here.")] = False,
) -> None:
    """Say what this machine lacks for each stage, and how to get it."""
    findings = _load("doctor", "mend")() if mend else _load("doctor", "check")()
    for finding in findings:
        typer.echo(finding)
    if any(finding.needed and not finding.found for finding in findings):
        raise NowError("something that the crawl needs is missing (see above)")


@_stage(
    simweb,
    "make",
    SimwebSettings,
    {"folder": "Folder to write urls.txt, truth.parquet and simweb.toml into."},
)
def _simweb_make(folder: Path, settings: SimwebSettings, _force: bool) -> None:
    """Draw a simulated web: URL list and truth."""
    typer.echo(_load("simweb.make", "make")(folder, settings))


@simweb.command("serve")
def _simweb_serve(
    folder: Annotated[Path, typer.Argument(help="Folder made by simweb make.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one.")] = 8765,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write ADDRESS:PORT here once it listens.")
    ] = None,
    latency_ms: Annotated[int, typer.Option(min=0, help="Wait before every answer.")] = 0,
    access_log: Annotated[
        Path | None, typer.Option(help="Append a line HOST/PATH for each request.")
    ] = None,
) -> None:
    """Serve a simulated web on loopback until interrupted.

    Crawl it with: now-builder crawl FOLDER/urls.txt CAPTURES --allow-private
    --resolve '*.test:127.0.0.1:8765'
    """
    _load("simweb.serve", "serve")(
        folder,
        port,
        ready_file=ready_file,
        latency_s=latency_ms / 1000,
        access_log=access_log,
    )


def main() -> None:
    """Entry point."""
    run(app)
