"""Results for the page of a model on the Hugging Face hub: ``.eval_results/*.yaml``."""

import re
from pathlib import Path

from leaderboard.scoring.result import Direction, Result
from now_builder.errors import ConfigError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import write_text

FOLDER = ".eval_results"


def write_hub_results(result: Result, dataset: str, model: Path) -> Path:
    """Write nDCG@10 of both directions, in percent as MTEB does, into a model's repository.

    The tasks are those of the ``eval.yaml`` that ``now-builder publish`` writes.

    Args:
        result: the result, of the test split.
        dataset: the data set on the hub, ``USER/NAME``.
        model: folder of the model's repository.

    Returns:
        The file.

    Raises:
        ConfigError: If the result is not ranked, of another split or data set, or has no nDCG@10.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", dataset, re.ASCII):
        raise ConfigError(f"--dataset: found {dataset!r}, expected USER/NAME")
    about = f"{result.method.name}, track {result.track}, split {result.split}"
    if not result.ranked:
        raise ConfigError(f"{about}: not ranked, expected a ranked result: {result.reason}")
    if result.split != "test" or result.track not in TOKENIZERS:
        raise ConfigError(f"{about}: expected the test split and one of {', '.join(TOKENIZERS)}")
    entries = []
    for task, way in (("i2t", result.i2t), ("t2i", result.t2i)):
        if way.ndcg is None:
            raise ConfigError(f"{about}: no nDCG@10, as in a blind round; else score it again")
        value, url = round(100 * way.ndcg, 5), result.links.code or result.links.paper
        notes = _notes(result, way)
        entries.append(EvalResultEntry(dataset, task, value, source_url=url, notes=notes))
    path = model / FOLDER / f"{dataset.partition('/')[2]}-{result.track}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = eval_result_entries_to_yaml(entries)
    write_text(path, yaml_dump(tree, sort_keys=False))
    return path


def _notes(result: Result, way: Direction) -> str:
    recalls = ", ".join(
        f"R@{k} {value:.1f}" for k, value in zip((1, 5, 10), way.values(), strict=True)
    )
    data = f"release {result.release.fingerprint[:8]}, {result.n_pairs} pairs"
    tokens = f"captions as {result.track} tokens"
    parts = [f"nDCG@10; {recalls}", f"rSum of both directions {result.rsum:.1f}", tokens, data]
    flags = [flag.code for flag in result.current_flags]
    return "; ".join([*parts, *([f"flagged: {', '.join(flags)}"] if flags else [])])
