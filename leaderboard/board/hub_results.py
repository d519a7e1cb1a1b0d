"""Results for the page of a model on the Hugging Face hub: ``.eval_results/*.yaml``."""

import re
from pathlib import Path

from leaderboard.board.display_text import EVIDENCE_MEANS
from leaderboard.scoring.result import Direction
from leaderboard.store.entries import Entry
from now_builder.errors import ConfigError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import write_text

FOLDER = ".eval_results"


def write_hub_results(entry: Entry, dataset: str, model: Path) -> Path:
    """Write nDCG@10 of both directions, in percent as MTEB does, into a model's repository.

    The tasks are those of the ``eval.yaml`` that ``now-builder publish`` writes. Figures are those
    that a board shows, and the notes say whether they are a claim or proof.

    Args:
        entry: the entry, of the test split.
        dataset: the data set on the hub, ``USER/NAME``.
        model: folder of the model's repository.

    Returns:
        The file.

    Raises:
        ConfigError: If the entry is withdrawn, not ranked, of another split or data set, or has no
            nDCG@10.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", dataset, re.ASCII):
        raise ConfigError(f"--dataset: found {dataset!r}, expected USER/NAME")
    result = entry.shown
    about = f"{result.method.name}, track {result.track}, split {result.split}"
    if entry.withdrawal is not None:
        raise ConfigError(f"{about}: withdrawn, expected an entry that stands")
    if not result.ranked:
        raise ConfigError(f"{about}: not ranked, expected a ranked result: {result.reason}")
    if result.split != "test" or result.track not in TOKENIZERS:
        raise ConfigError(f"{about}: expected the test split and one of {', '.join(TOKENIZERS)}")
    entries = []
    for task, way in (("i2t", result.i2t), ("t2i", result.t2i)):
        if way.ndcg is None:
            raise ConfigError(f"{about}: no nDCG@10, as in a blind round; else score it again")
        value, url = round(100 * way.ndcg, 5), result.links.code or result.links.paper
        notes = _notes(entry, way)
        entries.append(EvalResultEntry(dataset, task, value, source_url=url, notes=notes))
    path = model / FOLDER / f"{dataset.partition('/')[2]}-{result.track}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = eval_result_entries_to_yaml(entries)
    write_text(path, yaml_dump(tree, sort_keys=False))
    return path


def _notes(entry: Entry, way: Direction) -> str:
    result = entry.shown
    recalls = ", ".join(
        f"R@{k} {value:.1f}" for k, value in zip((1, 5, 10), way.values(), strict=True)
    )
    data = f"release {result.release.fingerprint[:8]}, {result.n_pairs} pairs"
    tokens = f"captions as {result.track} tokens"
    parts = [f"nDCG@10; {recalls}", f"rSum of both directions {result.rsum:.1f}", tokens, data]
    parts.append(f"{entry.evidence}, {EVIDENCE_MEANS[entry.evidence]}".replace(";", ","))
    if entry.run is not None:
        parts.append(f"claimed rSum {entry.result.rsum:.1f}")
    return "; ".join([*parts, *(note.code for note in entry.shown.notes)])
