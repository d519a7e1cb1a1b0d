"""The command line of the baseline: train, predict, division, presets, plant."""

import json
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

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
def division(
    run: RunFolder,
    truth: Annotated[
        Path, typer.Option(help="CSV or Parquet with url or key, and matched (true or false).")
    ],
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
