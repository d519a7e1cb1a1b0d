"""The exports as BEIR and for MTEB, read by datasets and scored by mteb itself."""

import importlib.util
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leaderboard.metrics import CUTOFFS, OneWay, recalls
from now_builder.export.run import export
from now_builder.export.settings import ExportSettings
from now_builder.formats.release import Pair, read_pairs
from now_builder.formats.shard import read_captures

datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def test_pairs(repeating_release: Path) -> list[Pair]:
    return [pair for pair in read_pairs(repeating_release) if pair.split == "test"]


@pytest.fixture(scope="module")
def out(repeating_release: Path, small_crawl: Path, tmp_path_factory, small_files: None) -> Path:
    """Pictures are in several files."""
    out = tmp_path_factory.mktemp("mteb") / "out"
    settings = ExportSettings(to="mteb", captures=small_crawl)
    export(repeating_release, out, settings)
    return out


@pytest.fixture(scope="module")
def pictures(small_crawl: Path) -> dict[str, bytes]:
    return {capture.key: capture.screenshot for capture in read_captures(small_crawl)}


def language(pair: Pair) -> str:
    return pair.lang or "und"


def test_each_direction_and_language_loads_with_its_pairs(out, test_pairs, pictures, tmp_path):
    def load(name: str):
        return datasets.load_dataset(str(out), name, split="test", cache_dir=str(tmp_path))

    languages = {language(pair) for pair in test_pairs}
    assert {"en", "und"} < languages
    for lang in (None, "en"):
        own = {pair.key: pair for pair in test_pairs if lang in {None, language(pair)}}
        for way in ("t2i", "i2t"):
            subset = f"{way}-{lang}" if lang else way
            corpus, queries, qrels = (
                {row["_id"]: row for row in load(f"{subset}-{part}")} if part != "qrels"
                else load(f"{subset}-{part}")
                for part in ("corpus", "queries", "qrels")
            )  # fmt: skip
            assert len(corpus) == len(queries) == len(qrels) == len(own)
            assert not {*corpus} & {*queries}, "BEIR drops documents with the id of their query"
            images, texts = (corpus, queries) if way == "t2i" else (queries, corpus)
            for row in qrels:
                ids = row["query-id"], row["corpus-id"]
                assert (ids[0] in queries, ids[1] in corpus, row["score"]) == (True, True, 1)
                image, text = (ids[1], ids[0]) if way == "t2i" else ids
                key = text.removesuffix(".text")
                assert texts[text]["text"] == own[key].caption
                shown = Image.open(io.BytesIO(pictures[key]))
                assert images[image]["image"].tobytes() == shown.tobytes()
    assert load("qrels")[:] == load("t2i-qrels")[:]


def test_a_split_has_its_own_languages_alone(out, repeating_release):
    """Else mteb, which takes the only split that there is, would score dev as test."""
    pairs = read_pairs(repeating_release)
    names = datasets.get_dataset_config_names(str(out))
    for lang in {language(pair) for pair in pairs if pair.split != "train"}:
        splits = {pair.split for pair in pairs if language(pair) == lang} - {"train"}
        found = datasets.get_dataset_split_names(str(out), f"t2i-{lang}-qrels")
        assert {*found} == splits
        assert f"i2t-{lang}-corpus" in names


@pytest.fixture
def mteb(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return pytest.importorskip("mteb", reason="the extra mteb is not installed")


def load_tasks(out: Path):
    spec = importlib.util.spec_from_file_location("now_tasks", out / "now_tasks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TASKS


def of_subset(result, subset: str):
    [found] = [scores for scores in result.scores["test"] if scores["hf_subset"] == subset]
    return found


def as_matrix(kept: dict[str, dict[str, float]], keys: list[str], way: str) -> np.ndarray:
    """Return the scores that mteb kept, images x captions."""
    query, document = (".image", ".text") if way == "i2t" else (".text", ".image")
    rows = [[kept[key + query][other + document] for other in keys] for key in keys]
    return np.array(rows if way == "i2t" else np.transpose(rows))


def check_equal(found: dict[str, float], ours: OneWay) -> int:
    """Check mteb's recalls against ours, and return how many of them ties decide.

    mteb rounds its own to five digits.
    """
    tied = 0
    for cutoff in CUTOFFS:
        expected = found[f"expected_recall_at_{cutoff}"]
        assert 100 * expected == pytest.approx(ours.recall(cutoff), abs=1e-9)
        theirs = 100 * found[f"recall_at_{cutoff}"]
        assert ours.pessimistic(cutoff) - 1e-3 <= theirs <= ours.optimistic(cutoff) + 1e-3
        tied += ours.pessimistic(cutoff) != ours.optimistic(cutoff)
    return tied


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_mteb_finds_the_recalls_of_our_evaluator(mteb, out, test_pairs, tmp_path):
    """Over all pairs and by language, for a random model, whose scores mteb keeps."""
    tasks = load_tasks(out)
    names = ["AnameoddI2TRetrieval", "AnameoddT2IRetrieval"]
    assert [task.metadata.name for task in tasks] == names
    model = mteb.get_model("mteb/baseline-random-encoder")
    where = {"cache": mteb.ResultCache(tmp_path / "cache"), "prediction_folder": tmp_path / "kept"}
    results = mteb.evaluate(model, tasks, **where, encode_kwargs={"batch_size": 16}).task_results
    keys = [pair.key for pair in test_pairs]
    tied = 0
    for task, way in zip(results, ("i2t", "t2i"), strict=True):
        [path] = tmp_path.glob(f"kept/**/{task.task_name}*")
        kept = json.loads(path.read_text())
        for lang in (None, *{language(pair) for pair in test_pairs}):
            subset = f"{way}-{lang}" if lang else way
            own = [n for n, pair in enumerate(test_pairs) if lang in {None, language(pair)}]
            scores = as_matrix(kept[subset]["test"], [keys[n] for n in own], way)
            tied += check_equal(of_subset(task, subset), getattr(recalls(scores), way))
    assert tied > 0, "equal captions have equal scores"
    assert "now_tasks" not in sys.modules
    english = of_subset(results[0], "i2t-en")
    assert english["languages"] == ["eng-Latn"]
    assert of_subset(results[1], "t2i-und")["languages"] == ["und-Zyyy"]
