"""A table of variants: each trained with some seeds, each scored once, as Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from now_builder.config import Strict, build, read_toml, with_overrides
from now_builder.errors import ConfigError, TrainingError
from now_builder.formats.io import read_json, sha256_of, write_json, write_text
from now_builder.formats.split import Split
from pc2_baseline.config import Settings, with_method
from pc2_baseline.methods.pc2.peers import PseudoClassSettings
from pc2_baseline.progress import say
from pc2_baseline.runs import text_table
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.grid import grid
from pc2_baseline.runs.series import Spread
from pc2_baseline.runs.text_table import SCORE_COLUMNS, SCORES, Column, Value
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.run_folder import BEST

DEFAULT_ROWS = "ablations"
ROW_SETS = (DEFAULT_ROWS, "sensitivity")
PARTS = ("P-Cls", "P-Cap", "CR")


class Row(Strict):
    """A variant: its folder, its title in the table, and settings on top of all others."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    title: str
    set: list[str] = Field(default_factory=list)


class Rows(Strict):
    """A file of variants."""

    row: Annotated[list[Row], Field(min_length=1)]


class Score(Strict):
    """``seed-N.SPLIT.json``: recalls of a run's best epoch on a split, in percent, and ``rsum``."""

    split: Split
    best_epoch: int
    checkpoint: str
    """SHA-256 of ``best/state.json``, which identifies a training."""
    recalls: dict[str, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table: its parts of PC2, and scores by column once a seed is scored."""

    name: str
    title: str
    parts: dict[str, bool]
    seeds: list[int]
    scores: dict[str, Spread]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows on a split, and the messages of runs that broke down."""

    split: str
    lines: list[Line]
    failures: list[str]


def read_rows(rows: str | None) -> list[Row]:
    """Read variants from a TOML file, or those that come with the package by name.

    Raises:
        ConfigError: If there are none, or two of a name.
    """
    name = rows or DEFAULT_ROWS
    if name in ROW_SETS:
        found = build(Rows, read_toml(Path(__file__).with_name(f"{name}.toml")), name).row
    elif Path(name).exists():
        found = build(Rows, read_toml(Path(name)), name).row
    else:
        raise ConfigError(f"--rows {name}: neither a file nor one of {', '.join(ROW_SETS)}")
    names = [row.name for row in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"{name}: two rows of one name, expected {names} to differ")
    return found


def settings_of(row: Row, tree: dict[str, Any], origin: str) -> Settings:
    """Build a row's settings.

    Args:
        row: The variant; if it names another method, settings that both methods have are kept.
        tree: Plain settings of all rows.
        origin: Source of the settings, for the message.

    Raises:
        ConfigError: Naming the row and each setting that is unknown or out of range.
    """
    method = with_overrides({}, row.set).get("method", {})
    if "name" in method:
        tree = with_method(tree, str(method["name"]))
    return build(Settings, with_overrides(tree, row.set), f"{origin}, row {row.name}")


def ablate(
    release: Path,
    out: Path,
    rows: Sequence[tuple[Row, Settings]],
    seeds: Sequence[int],
    split: Split = "test",
) -> Table:
    """Train and score every row with every seed; write the table after each run.

    Args:
        release: As :func:`~pc2_baseline.runs.train.train` takes it.
        out: Runs are ``out/<row>/seed-N``; what is done there is not done again.
        rows: Variants and their settings.
        seeds: One or more.
        split: ``dev`` or ``test``; a run is scored once, at the epoch selected on dev.

    Returns:
        The table; a run that broke down is among its failures, and the others went on.

    Raises:
        ConfigError: If the folder has rows that are not among these, whose table would be lost.
    """
    _refuse_others(out, [row.name for row, _ in rows])
    table = Table(split, [_line(row, settings, {}) for row, settings in rows], [])
    scores: dict[str, dict[int, Score]] = {row.name: {} for row, _ in rows}
    for run in grid(out, [(row.name, settings) for row, settings in rows], seeds):
        say(f"{run.row}, seed {run.seed}:")
        try:
            train(release, run.folder, run.settings)
        except TrainingError as error:
            table.failures.append(f"{run.row}, seed {run.seed}: {error}")
            say(table.failures[-1])
            continue
        scores[run.row][run.seed] = score(release, run.folder, split)
        for place, (row, settings) in enumerate(rows):
            table.lines[place] = _line(row, settings, scores[row.name])
        _write(out, table)
    _write(out, table)
    return table


def _refuse_others(out: Path, names: Sequence[str]) -> None:
    others = {path.parent.parent.name for path in out.glob("*/seed-*/run.toml")}.difference(names)
    if others:
        raise ConfigError(
            f"{out}: holds rows that are not asked for, {', '.join(sorted(others))}; give another "
            "OUT, all rows in one file, or remove them"
        )


def _line(row: Row, settings: Settings, scores: dict[int, Score]) -> Line:
    columns = {
        name: Spread.of([score.recalls[name] for score in scores.values()])
        for name in SCORES
        if scores
    }
    return Line(row.name, row.title, parts(settings), list(scores), columns)


def parts(settings: Settings) -> dict[str, bool]:
    """Return whether a method has each part of PC2."""
    method = settings.method
    is_pc2 = isinstance(method, PseudoClassSettings)
    names = ("pseudo_classes", "pseudo_captions", "rectify")
    return {
        part: is_pc2 and bool(getattr(method, name, True))  # the released code has each
        for part, name in zip(PARTS, names, strict=True)
    }


def score(release: Path, run: Path, split: Split) -> Score:
    """Score a finished run's best epoch, or read what an earlier call found.

    Raises:
        FormatError: If the release or the checkpoint cannot be read.
    """
    path = run.with_name(f"{run.name}.{split}.json")
    checkpoint = sha256_of(run / BEST / STATE)
    if path.exists():
        found = build(Score, read_json(path, "no score"), str(path))
        if found.checkpoint == checkpoint:
            return found
    best, recalls = read_state(run / BEST), evaluate(run, split, release=release).scores
    found = Score(split=split, best_epoch=best.best_epoch, checkpoint=checkpoint, recalls=recalls)
    write_json(path, found.model_dump(mode="json"))
    return found


def _write(out: Path, table: Table) -> None:
    write_json(out / "table.json", asdict(table))
    write_text(out / "table.md", to_markdown(table))
    write_text(out / "table.tex", to_latex(table))


def _columns(table: Table) -> tuple[list[Column], list[list[Value]]]:
    """Return the table's columns, and its rows' cells."""
    columns = [
        Column("variant", "Variant", align="l"),
        *(Column(part, part, align="c") for part in PARTS),
        *SCORE_COLUMNS,
        Column("seeds", "Seeds"),
    ]
    rows: list[list[Value]] = [
        [
            line.title,
            *(line.parts[part] for part in PARTS),
            *(line.scores.get(name, "") for name in SCORES),
            str(len(line.seeds)),
        ]
        for line in table.lines
    ]
    return columns, rows


def to_markdown(table: Table) -> str:
    """Write a table as Markdown: mean ± standard deviation (n - 1) over the seeds."""
    return text_table.to_markdown(*_columns(table))


def to_latex(table: Table) -> str:
    """Write a table as LaTeX, for the packages booktabs and amssymb."""
    return (
        "% \\usepackage{booktabs, amssymb}\n"
        f"% {table.split} split, mean and standard deviation (n - 1) over the seeds\n"
        + text_table.to_latex(*_columns(table))
    )
