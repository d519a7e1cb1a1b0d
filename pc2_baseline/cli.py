"""The command line: train, predict, evaluate, tables of runs, planted releases and noise."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from now_builder.errors import ConfigError, TrainingError
from now_builder.program.command_line import Fields, Program, say_version
from now_builder.program.command_line import run as run_app

if TYPE_CHECKING:
    from pc2_baseline.config import Plan, ZeroShotSettings


def _examples(*commands: str) -> str:
    """Return examples for the end of a command's help."""
    return "\n\n".join(["Examples:", *commands])


app = Program(
    name="pc2-baseline", help="Train PC2 and its baselines on a release, and predict with them."
)
app.callback(invoke_without_command=True)(say_version)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
RunFolders = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Folder of a run; similarities of several are averaged."),
]
Device = Annotated[
    str | None,
    typer.Option(help="Device: cpu, cuda, cuda:1 … or auto; default: the run's setting."),
]
Release = Annotated[
    Path | None, typer.Option(help="Folder of the release; default: where it was at training.")
]
Bank = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of random training pairs for the hub correction, which lowers pages and "
        "captions that are near to many of them; 0: none; default: the run's data.bank.",
    ),
]
Truth = Annotated[
    Path | None,
    typer.Option(
        help="CSV or Parquet of training pairs with url or key, and matched (true, false or a "
        "verdict of now-builder audit); captions that a noise file moved never match; default: the "
        "run's data.truth."
    ),
]


def _list_presets(listed: bool) -> None:
    """List the presets and their sections, with the published rSum."""
    from pc2_baseline.config import presets, sections_of

    if listed:
        for name, about in presets().items():
            typer.echo(f"{name}: {about}")
            for on, words in sections_of(name).items():
                typer.echo(f"    --on {on:9}{words}".rstrip())
        raise typer.Exit


Config = Annotated[
    str | None,
    typer.Option(
        help="Preset (--presets) or TOML file; default: pc2-paper, below 10,000 training pairs "
        "crossfit-pooled --on demo."
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="DATASET",
        help="Section of the preset, such as coco, f30k, cc152k or demo (`train --presets`); "
        "default: now, its values for NoW.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Setting to change (repeatable)."),
]
ReleaseArgument = Annotated[
    Path, typer.Argument(metavar="RELEASE", help="Folder of a release, or of the authors' archive.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(
    kept="finished epochs are kept",
    epilog=_examples(
        "pc2-baseline train out/release runs/pc2",
        "pc2-baseline train out/release runs/sgr --config sgr --set train.epochs=30",
        "pc2-baseline train data/coco runs/ncr --config ncr --on coco",
        "torchrun --no-python --nproc-per-node 2 pc2-baseline train out/release runs/pc2",
        "pc2-baseline train out/release runs/clip --config clip --captures out/captures",
        "tensorboard --logdir runs",
    ),
)
def train(
    release: ReleaseArgument,
    run: RunFolder,
    config: Config = None,
    on: On = None,
    set_: Set = None,
    device: Device = None,
    captures: Annotated[
        Path | None, typer.Option(help="Captures folder of the release, for pixels (clip).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an existing run; fail if there is none.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over.")] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of peers to train at once, also on one GPU.")
    ] = 1,
    as_json: AsJson = False,
    presets: Annotated[  # noqa: ARG001 - its callback lists them
        bool,
        typer.Option(
            "--presets",
            is_eager=True,
            callback=_list_presets,
            help="List the presets with their sections for --on, and exit.",
        ),
    ] = False,
) -> None:
    """Train on RELEASE; run the same command again to resume after an interruption.

    RUN then contains run.toml (all settings), log.jsonl (a line per epoch), best/ and last/
    (weights), divisions/, tensorboard/, curves.png and pictures/. A resumed run equals an
    uninterrupted one.

    With --processes, or under torchrun, each peer of PC2 and crossfit is trained by an equal share
    of the processes, which split its similarity block. If shares would be unequal, and for other
    methods, all processes split each block.
    """
    if processes > 1 and "WORLD_SIZE" not in os.environ:
        several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        this = [sys.executable, "-c", "from pc2_baseline.cli import main; main()", *sys.argv[1:]]
        os.execv(sys.executable, [sys.executable, *several, "--no-python", *this])  # noqa: S606
    from pc2_baseline.config import DEFAULT_PRESET, read_settings
    from pc2_baseline.process_groups import is_first
    from pc2_baseline.progress import say
    from pc2_baseline.runs.train import default_preset, with_only_track
    from pc2_baseline.runs.train import train as start

    overrides = [*(set_ or []), *([f'train.device="{device}"'] if device else [])]
    overrides += [f"data.captures={json.dumps(str(captures.resolve()))}"] if captures else []
    by_size = config is None and on is None
    if by_size:
        config, overrides, on = default_preset(release, overrides)
    settings = read_settings(config, with_only_track(release, config, overrides, on), on)
    if by_size and config != DEFAULT_PRESET:
        reading = ", starting from the words read on its pages"
        words = reading if settings.model.similarity == "reading" else ""
        say(
            f"{release}: preset {config} --on {on}{words}, chosen for this release, on track "
            f"{settings.data.tokenizer}; --config changes it"
        )
    if resume and force:
        raise ConfigError("--resume and --force: expected only one of them")
    if resume and not (run / "run.toml").exists():
        raise ConfigError(f"{run}: no run to resume; omit --resume to start one")
    done = start(release, run, settings, force=force)
    if is_first():
        words = f"{run}: {done.in_words()}"
        _print({"run": str(run), **asdict(done)}, words, as_json=as_json)


def _print(fields: dict[str, Any], words: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(fields, indent=2) if as_json else words)


@app.command(
    epilog=_examples(
        "pc2-baseline predict runs/pc2 -o pc2.zip",
        "pc2-baseline predict runs/sgr runs/saf -o sgraf.zip",
        "pc2-baseline predict runs/sgr/seed-0 runs/sgr/seed-1 -o sgr-twice.zip",
        "pc2-baseline predict runs/pc2 --split dev -o dev.zip --release /data/release",
        "now-leaderboard score pc2.zip --release out/release",
    )
)
def predict(
    runs: RunFolders,
    output: Annotated[Path, typer.Option("-o", "--output", help="The submission, a .zip file.")],
    split: Annotated[str, typer.Option(help="dev or test.")] = "test",
    bank: Bank = None,
    release: Release = None,
    device: Device = None,
) -> None:
    """Score a split with the best epoch and pack the matrix as a submission.

    Similarities of several runs on the same data are averaged with equal weights: SGRAF is SGR and
    SAF, and two seeds of one network compare with a method of two networks.
    """
    from pc2_baseline.runs.predict import predict as start

    start(runs, split, output, release=release, device_name=device, bank=bank)
    typer.echo(f"{output}")


@app.command(
    "zero-shot",
    epilog=_examples(
        "pc2-baseline zero-shot out/release --captures captures -o siglip2.zip "
        "--model google/siglip2-base-patch16-224",
        "pc2-baseline zero-shot out/release --captures captures -o clip.zip "
        "--model openai/clip-vit-base-patch32 --squeeze",
        "now-leaderboard score clip.zip --release out/release",
    ),
)
def zero_shot(
    release: Annotated[
        Path, typer.Argument(metavar="RELEASE", help="Folder made by now-builder package.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The submission, a .zip file.")],
    settings: Annotated["ZeroShotSettings", Fields("pc2_baseline.config:ZeroShotSettings")],
) -> None:
    """Score screenshots against caption texts with a pre-trained model, without training.

    A model on the hub is downloaded once. To work offline, download it beforehand
    (`hf download NAME --local-dir FOLDER`) and give the folder.
    """
    from pc2_baseline.runs.zero_shot import zero_shot as start

    start(release, output, settings)
    typer.echo(f"{output}")


@app.command(
    "rank-pairs",
    epilog=_examples(
        "pc2-baseline rank-pairs out/release -o pairs.csv",
        "now-builder audit out/release --captures captures --suspects pairs.csv",
    ),
)
def rank_pairs(
    release: ReleaseArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .csv file to write.")],
    track: Annotated[
        str | None,
        typer.Option(help="Tokenizer of the captions to read; default: bert, or the first."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the probability that each pair of a release matches, the surest mismatches first.

    No training run is needed: ridge regression predicts a page's caption from the features, and
    from the words on the page if the detector reads. Each pair is scored by a fit without its
    domain and caption; with too few domains, without its page and caption.
    """
    from pc2_baseline.runs.rank_pairs import rank_pairs as start

    ranking = start(release, output, track)
    _print(asdict(ranking), str(ranking), as_json=as_json)


@app.command()
def evaluate(
    runs: RunFolders,
    split: Annotated[str, typer.Option(help="dev or test.")] = "test",
    fold: Annotated[
        int | None,
        typer.Option(
            min=1, help="Images per fold, to average folds, too; default: 1000 for MS-COCO's test."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The .npy file for the similarities.")
    ] = None,
    bank: Bank = None,
    release: Release = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compute recalls in both directions and rSum of the best epoch, on any layout.

    Similarities of several runs are averaged as by `predict`.
    """
    from pc2_baseline.runs.evaluate import evaluate as start

    scored = start(
        runs, split, release=release, device_name=device, bank=bank, matrix=output, fold=fold
    )
    _print(asdict(scored), str(scored), as_json=as_json)


@app.command(
    epilog=_examples(
        "pc2-baseline examples runs/pc2 --captures captures -o page.html",
        "pc2-baseline examples runs/pc2 --captures captures -o page.html --truth truth.csv --n 6",
    )
)
def examples(
    run: RunFolder,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .html file to write.")],
    captures: Annotated[
        Path | None, typer.Option(help="Captures folder of the release; default: no pictures.")
    ] = None,
    split: Annotated[str, typer.Option(help="dev or test.")] = "test",
    query: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key of the only page to show; default: a sample."),
    ] = None,
    count: Annotated[int, typer.Option("--n", min=1, help="Number of examples of each kind.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    truth: Truth = None,
    release: Release = None,
    device: Device = None,
) -> None:
    """Write an HTML page with examples of a run's results.

    It shows the five nearest captions of pages and the five nearest pages of captions, for a sample
    of the split, half of it right and half wrong; then the training pairs with the lowest and the
    highest clean probability.
    """
    from pc2_baseline.runs.examples import Choice
    from pc2_baseline.runs.examples import examples as start

    choice = Choice(split, query, count, seed, truth)
    start(run, captures, output, choice, release=release, device_name=device)
    typer.echo(f"{output}")


@app.command("make-noise")
def make_noise(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of a data set.")],
    output: Annotated[Path, typer.Argument(metavar="OUT.npy", help="The noise file to write.")],
    mismatch: Annotated[float, typer.Option(help="Share of captions to shuffle, 0 to 1.")],
    protocol: Annotated[
        Literal["captions", "images", "site", "language"],
        typer.Option(
            help="Shuffle single captions (captions) or images with all their captions (images), or"
            " exchange different captions in a site and language (site) or a language (language)."
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    name: Annotated[str | None, typer.Option(help="Layout; default: by the folder's name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a file for data.noise_file that gives a share of training captions other images."""
    from pc2_baseline.data.make_noise import Draw
    from pc2_baseline.data.make_noise import make_noise as start

    made = start(release, output, Draw(mismatch, protocol, seed), name, force=force)
    typer.echo(f"{output}: {made.mismatch:.4%} of the captions have another image\n{made.sha256}")


@app.command(
    epilog=_examples(
        "pc2-baseline division runs/pc2 --truth truth.csv --every-epoch",
        "pc2-baseline division runs/pc2 --truth truth.parquet --picture auroc.svg",
    )
)
def division(
    run: RunFolder,
    truth: Truth = None,
    release: Release = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Table of rank-pairs, to add the AUROC of its scores.")
    ] = None,
    every_epoch: Annotated[bool, typer.Option("--every-epoch", help="Print every epoch.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help="The .png or .svg file for a picture of the AUROC over epochs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well the division finds the mismatched pairs of a truth file (AUROC)."""
    from pc2_baseline.analysis.truth import in_words, report
    from pc2_baseline.training.run_folder import locate_release, read_run

    if picture and picture.suffix not in {".png", ".svg"}:
        raise ConfigError(f"--picture {picture}: expected the name of a .png or .svg file")
    record = read_run(run)
    measured = report(run, record, locate_release(run, record, release), truth, pairs)
    if picture:
        from pc2_baseline.analysis.pictures import draw_quality

        warmup = record.settings.train.warmup_epochs
        draw_quality(picture, measured.epochs, measured.best.epoch, warmup)
    fields = {"auroc": measured.best.auroc, **asdict(measured)}
    _print(fields, in_words(measured, every=every_epoch), as_json=as_json)


@app.command(
    kept="finished runs and epochs are kept",
    epilog=_examples(
        "pc2-baseline table out/release tables/now --methods sgr,pc2-paper,crossfit --seeds 3",
        "pc2-baseline table out/release tables/now --methods sgr,mine.toml --device cuda:0,cuda:1",
        "pc2-baseline table planted tables/p --methods pc2-paper --on planted --dry-run",
        "pc2-baseline table out/release tables/parts --rows ablations --on demo",
        "now-leaderboard submit tables/now/jieba/sgr/seed-0.zip --release out/release --store s",
    ),
)
def table(
    release: ReleaseArgument,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Folder of the runs (OUT/TOKENIZER/METHOD/seed-N)."),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="Presets (`train --presets`) or TOML files, one per row."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of rows, or ablations (parts of PC2) or sensitivity (its parameters).",
        ),
    ] = None,
    on: On = None,
    tokenizers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Tracks of NoW to train every row on, such as jieba,bpe,bert; default: jieba, or "
            "the release's first.",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(metavar="N", help="Number of seeds, or a list such as 0,4 (one alone: 4,)."),
    ] = "3",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Number of parallel processes; default: one per device."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="Devices: cpu, cuda or cuda:0,cuda:1 …; default: auto."
        ),
    ] = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
) -> None:
    """Make a benchmark's table: train each row with some seeds, score all, test the differences.

    OUT/table.md, .tex, .csv and .html then contain mean ± standard deviation (n - 1) of the recalls
    on the test split and of rSum on dev, each method with one and with two networks, training time
    and memory, the division's AUROC if data.truth is set, the paired test against the best row,
    references, and for a published data set the rows from papers. Run the command again to resume;
    earlier rows and seeds stay in the table. Next to each run are its submission for
    now-leaderboard (seed-N.zip) and its messages (seed-N.log).

    A file of rows is TOML, an array of tables named row. Each has a name (of its folder) and may
    have config (a preset or TOML file; default: pc2-paper), on (instead of --on) and set, a list of
    KEY=VALUE applied after --set, such as set = ["method.classes=512", "train.lr=1e-4"].
    """
    from pc2_baseline.runs import table as tables
    from pc2_baseline.runs import table_plan as plan

    devices, presets, tracks = (
        [part.strip() for part in (text or "").split(",") if part.strip()]
        for text in (device, methods, tokenizers)
    )
    slots, on_device = plan.make_slots(devices, jobs)
    chosen = plan.read_rows(presets, rows)
    overrides = [*(set_ or []), *on_device]
    settings = plan.table_rows(release, chosen, tracks, overrides, on)
    every = [*overrides, *(one for row in chosen for one in row.set)]
    work = tables.Work(release, out, settings, plan.read_seeds(seeds, every), slots)
    if dry_run:
        typer.echo(tables.dry_run(work))
        return
    markdown, failures = tables.make_table(work)
    typer.echo(markdown, nl=False)
    if failures:
        raise TrainingError(f"{len(failures)} runs failed: {', '.join(failures)}; see the notes")


@app.command()
def plant(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder to write.")],
    plan: Annotated["Plan", Fields("pc2_baseline.config:Plan")],
) -> None:
    """Make a small release of random pages with truth.csv in seconds, to try a method."""
    from pc2_baseline.data.planted import plant as start

    start(release, plan)
    typer.echo(f"{release}")


def main() -> None:
    """Run the command line; a user's mistake ends in one line and exit code 1."""
    run_app(app)
