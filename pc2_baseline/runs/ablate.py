"""A table of variants: each trained with some seeds, each scored once, as Markdown and LaTeX."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from leaderboard.metrics import CUTOFFS
from now_builder.config import Strict, build, read_toml, with_overrides
from now_builder.errors import ConfigError, TrainingError
from now_builder.formats.io import read_json, sha256_of, write_json, write_text
from now_builder.formats.split import Split
from pc2_baseline.config import Settings, with_method
from pc2_baseline.method_settings.pc2 import Pc2CommonSettings
from pc2_baseline.progress import say
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.series import Spread, seed_folder, with_seed
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.run_folder import BEST

DEFAULT_ROWS = "ablations"
ROW_SETS = (DEFAULT_ROWS, "sensitivity")
PARTS = ("P-Cls", "P-Cap", "CR")
COLUMNS = (*(f"{way}_R@{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS), "rsum")


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
    """
    table = Table(split, [_line(row, settings, {}) for row, settings in rows], [])
    for place, (row, settings) in enumerate(rows):
        scores: dict[int, Score] = {}
        for seed in seeds:
            say(f"{row.name}, seed {seed}:")
            run = out / row.name / seed_folder(seed)
            try:
                train(release, run, with_seed(settings, seed))
            except TrainingError as error:
                table.failures.append(f"{row.name}, seed {seed}: {error}")
                say(table.failures[-1])
                continue
            scores[seed] = score(release, run, split)
            table.lines[place] = _line(row, settings, scores)
            _write(out, table)
    _write(out, table)
    return table


def _line(row: Row, settings: Settings, scores: dict[int, Score]) -> Line:
    columns = {
        name: Spread.of([score.recalls[name] for score in scores.values()])
        for name in COLUMNS
        if scores
    }
    return Line(row.name, row.title, parts(settings), list(scores), columns)


def parts(settings: Settings) -> dict[str, bool]:
    """Return whether a method has each part of PC2."""
    method = settings.method
    is_pc2 = isinstance(method, Pc2CommonSettings)
    names = ("pseudo_classes", "pseudo_captions", "rectify")
    return {
        part: is_pc2 and bool(getattr(method, name))
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


def _cells(table: Table, bold: tuple[str, str], plus_minus: str) -> Iterator[list[str]]:
    """Yield each line's cells by column; the highest mean of a column, as written, is bold."""
    best = {
        name: max(round(line.scores[name].mean, 1) for line in table.lines if line.scores)
        for name in COLUMNS
        if any(line.scores for line in table.lines)
    }
    for line in table.lines:
        cells = []
        for name in COLUMNS:
            if not line.scores:
                cells.append("")
                continue
            found = line.scores[name]
            mean = f"{found.mean:.1f}"
            if round(found.mean, 1) == best[name]:
                mean = mean.join(bold)
            cells.append(mean if found.sd is None else f"{mean} {plus_minus} {found.sd:.1f}")
        yield cells


def to_markdown(table: Table) -> str:
    """Write a table as Markdown: mean ± standard deviation (n - 1) over the seeds."""
    recalls = [name.replace("_", " ") for name in COLUMNS[:-1]]
    head = ["variant", *PARTS, *recalls, "rSum", "seeds"]
    rows = [head, ["---", *([":-:"] * len(PARTS)), *(["--:"] * (len(COLUMNS) + 1))]]
    for line, cells in zip(table.lines, _cells(table, ("**", "**"), "±"), strict=True):
        marks = ["✓" if line.parts[part] else "" for part in PARTS]
        rows.append([line.title.replace("|", "\\|"), *marks, *cells, str(len(line.seeds))])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)  # fmt: skip


def to_latex(table: Table) -> str:
    """Write a table as LaTeX, for the packages booktabs and amssymb."""
    ways = "".join(
        f" & \\multicolumn{{{len(CUTOFFS)}}}{{c}}{{{way}}}"
        for way in ("Image to text", "Text to image")
    )
    first = 2 + len(PARTS)
    rules = "".join(
        f"\\cmidrule(lr){{{start}-{start + len(CUTOFFS) - 1}}}"
        for start in (first, first + len(CUTOFFS))
    )
    cutoffs = [f"R@{cutoff}" for cutoff in CUTOFFS]
    lines = [
        "% \\usepackage{booktabs, amssymb}",
        f"% {table.split} split, mean and standard deviation (n - 1) over the seeds",
        f"\\begin{{tabular}}{{l{'c' * len(PARTS)}{'r' * (len(COLUMNS) + 1)}}}",
        "\\toprule",
        f"{' & ' * len(PARTS)}{ways} & & \\\\",
        rules,
        " & ".join(["Variant", *PARTS, *cutoffs, *cutoffs, "rSum", "Seeds"]) + " \\\\",
        "\\midrule",
    ]
    for line, cells in zip(table.lines, _cells(table, ("\\textbf{", "}"), "$\\pm$"), strict=True):
        marks = ["\\checkmark" if line.parts[part] else "" for part in PARTS]
        title = line.title.translate(_LATEX)
        lines.append(" & ".join([title, *marks, *cells, str(len(line.seeds))]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])
