"""Define tasks for ``mteb``: retrieve captions by screenshots and screenshots by captions.

``now-builder export --to mteb`` copies this module into its folder and the tasks read its pairs::

    results = mteb.evaluate(model, now_tasks.TASKS)

A task has a subset for all languages, such as ``t2i``, and one per language, such as ``t2i-en``.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal, get_args

from huggingface_hub import DatasetCard
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.languages.iso_mappings import _hf_lang_to_iso_lang_script
from mteb.types import Licenses

_FOLDER = Path(__file__).resolve().parent
_CARD = DatasetCard.load(_FOLDER / "README.md").data.to_dict()


class _OwnPair(AbsTaskRetrieval):  # type: ignore[misc]
    """Retrieval of the only relevant document of a query."""

    def task_specific_scores(
        self, scores: Any, qrels: Any, results: Any, **_: str
    ) -> dict[str, float]:
        """Add ``expected_recall_at_k``, the expected recall under random tie-breaking.

        Equal captions have equal scores; ``recall_at_k`` orders ties by id, as trec_eval does.
        With g documents above the relevant one and e others equal to it, its expected hit is
        clip((k - g) / (e + 1), 0, 1), as on the noise-of-web leaderboard.
        """
        del scores
        hits = dict.fromkeys((1, 5, 10), 0.0)
        for query, ranked in results.items():
            (relevant,) = (ranked.get(document) for document in qrels[query])
            if relevant is not None:  # else it is not among the best 1,000
                greater = sum(score > relevant for score in ranked.values())
                equal = sum(score == relevant for score in ranked.values())
                for cutoff in hits:
                    hits[cutoff] += min(max((cutoff - greater) / equal, 0.0), 1.0)
        return {f"expected_recall_at_{k}": hit / len(results) for k, hit in hits.items()}


def _metadata(way: Literal["i2t", "t2i"]) -> TaskMetadata:
    """Read a task's metadata from the card, whose configurations name subsets and languages."""
    name = str(_CARD["pretty_name"])
    subsets: dict[str, list[str]] = {}
    for config in _CARD["configs"]:
        match = re.fullmatch(rf"({way}(?:-(\w+))?)-qrels", config["config_name"])
        if match and any(files["split"] == "test" for files in config["data_files"]):
            code = _hf_lang_to_iso_lang_script(match[2]) if match[2] else None
            subsets[match[1]] = [code or "und-Zyyy"] if match[2] else []
    subsets[way] = sorted({code for codes in subsets.values() for code in codes})
    return TaskMetadata(
        name=re.sub(r"\W+", "", name) + {"i2t": "I2T", "t2i": "T2I"}[way] + "Retrieval",
        description=f"{name}: screenshots of web pages and their meta descriptions.",
        dataset={
            "path": str(_FOLDER),
            "revision": json.loads((_FOLDER / "export.json").read_text("utf-8"))["digest"][:40],
        },
        type="Any2AnyMultilingualRetrieval",
        category=way,
        modalities=["image", "text"],
        eval_splits=["test"],
        eval_langs=subsets,
        main_score="ndcg_at_10",
        domains=["Web"],
        task_subtypes=["Image Text Retrieval"],
        license=_CARD["license"] if _CARD["license"] in get_args(get_args(Licenses)[0]) else None,
        sample_creation="found",
    )


class ImageToText(_OwnPair):
    """Find the caption of a screenshot."""

    metadata = _metadata("i2t")


class TextToImage(_OwnPair):
    """Find the screenshot of a caption."""

    metadata = _metadata("t2i")


TASKS = [ImageToText(), TextToImage()]
