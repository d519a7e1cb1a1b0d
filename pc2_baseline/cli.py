"""The command line of the baseline: train, evaluate, predict, division, noise, presets, plant."""

import json
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from now_builder.config import build
from now_builder.errors import run as run_app
from pc2_baseline.config import Plan

app = typer.Typer(
    help="Train PC2 and its baselines on a release, and predict with them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 … or auto; default: as set for the run.")
]
Release = Annotated[
    Path | None, typer.Option(help="Where the release lies now; default: where it was at training.")
]
Force = Annotated[bool, typer.Option("--force", help="Start over.")]
EveryEpoch = Annotated[bool, typer.Option("--every-epoch", help="One line an epoch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def train(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of a release.")],
    run: RunFolder,
    config: Annotated[
        str | None,
        typer.Option(help="TOML file or name of a preset (see `presets`); default: pc2-paper."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting.")
    ] = None,
    device: Device = None,
    force: Force = False,
) -> None:
    """Train on RELEASE; run the same command again to go on after an interruption."""
    from pc2_baseline.config import read_settings  # noqa: PLC0415 - quick help
    from pc2_baseline.trainer import train as start  # noqa: PLC0415 - torch is heavy

    overrides = [*(set_ or []), *([f'train.device="{device}"'] if device else [])]
    done = start(release, run, read_settings(config, overrides), force=force)
    typer.echo(
        f"{run}: {done.epochs} epochs, best epoch {done.best_epoch + 1} "
        f"with dev rSum {done.best_rsum:.1f}"
    )


@app.command()
def predict(
    run: RunFolder,
    output: Annotated[Path, typer.Option("-o", "--output", help="The submission, a .zip file.")],
    split: Annotated[str, typer.Option(help="dev or test.")] = "test",
    release: Release = None,
    device: Device = None,
) -> None:
    """Score a split with the best epoch and pack the matrix as a submission."""
    from pc2_baseline.predict import predict as start  # noqa: PLC0415 - torch is heavy

    start(run, split, output, release=release, device_name=device)
    typer.echo(f"{output}")


@app.command()
def evaluate(
    run: RunFolder,
    split: Annotated[str, typer.Option(help="dev or test.")] = "test",
    fold: Annotated[
        int | None,
        typer.Option(
            min=1, help="Average folds of so many images too; default: 1000 for MS-COCO's test."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the similarities here, as .npy.")
    ] = None,
    release: Release = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Score a split with the best epoch: recalls both ways and rSum, on any layout."""
    from dataclasses import asdict  # noqa: PLC0415 - quick help

    from pc2_baseline.evaluate import evaluate as start  # noqa: PLC0415 - torch is heavy
    from pc2_baseline.evaluate import in_words  # noqa: PLC0415 - torch is heavy

    found = start(run, split, release=release, device_name=device, matrix=output, fold=fold)
    typer.echo(json.dumps(asdict(found), indent=2) if as_json else in_words(found))


@app.command("make-noise")
def make_noise(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder of a data set.")],
    output: Annotated[Path, typer.Argument(metavar="OUT.npy", help="The noise file to write.")],
    ratio: Annotated[float, typer.Option(help="Share of the training captions to shuffle.")],
    protocol: Annotated[
        Literal["captions", "images"],
        typer.Option(help="Shuffle captions one by one, or images with all their captions."),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Layout, as data.name; default: the one that is there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file.")] = False,
) -> None:
    """Give a share of the training captions wrong images, in a file for data.noise_file."""
    from pc2_baseline.make_noise import Draw  # noqa: PLC0415 - torch is heavy
    from pc2_baseline.make_noise import make_noise as start  # noqa: PLC0415 - torch is heavy

    made = start(release, output, Draw(ratio, protocol, seed), name, force=force)
    typer.echo(f"{output}: {made.ratio:.4%} of the captions have another image\n{made.sha256}")


@app.command()
def division(
    run: RunFolder,
    truth: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet with url or key, and matched (true or false); default: the "
            "run's noise file."
        ),
    ] = None,
    release: Release = None,
    every_epoch: EveryEpoch = False,
    as_json: AsJson = False,
) -> None:
    """Tell how well the division finds the mismatched pairs of a truth file (AUROC)."""
    from pc2_baseline.run import locate_release, read_run  # noqa: PLC0415 - quick help
    from pc2_baseline.truth import in_words, report  # noqa: PLC0415 - sklearn is heavy

    record = read_run(run)
    found = report(run, record, locate_release(run, record, release), truth)
    typer.echo(
        json.dumps(found.as_json(), indent=2) if as_json else in_words(found, every=every_epoch)
    )


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the settings that come with the package."""
    from pc2_baseline.config import presets as found  # noqa: PLC0415 - quick help

    if as_json:
        typer.echo(json.dumps(found(), indent=2))
        return
    for name, line in found().items():
        typer.echo(f"{name:12} {line}")


def plant(release: Path, **plan: Any) -> None:
    """Make a small release of random pages, with truth.csv, for trying a method: in seconds."""
    from pc2_baseline.planted import plant as start  # noqa: PLC0415 - h5py is heavy

    start(release, build(Plan, plan, "plant"))
    typer.echo(f"{release}")


def _plant_options() -> Signature:
    """Turn the fields of a plan into options by their descriptions."""
    folder = Annotated[Path, typer.Argument(metavar="RELEASE", help="Folder to write.")]
    options = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[field.annotation, typer.Option(help=field.description)],
        )
        for name, field in Plan.model_fields.items()
    ]
    release = Parameter("release", Parameter.POSITIONAL_OR_KEYWORD, annotation=folder)
    return Signature([release, *options])


plant.__signature__ = _plant_options()  # type: ignore[attr-defined]
app.command()(plant)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and exit code 1."""
    run_app(app)
