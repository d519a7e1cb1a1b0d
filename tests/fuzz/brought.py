"""The readers of what a user brings: lists, tables, tokenizers, labels, settings."""

import json
import tempfile
from pathlib import Path

import pandas as pd
import tokenizers
from kinds import LONGEST, Kinds
from tokenizers.models import WordLevel

from now_builder.crawl.plan.urls import read_hosts, read_urls
from now_builder.detect.labels.coco import read_coco
from now_builder.detect.labels.mapping import read_mapping
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.shard import Planned
from now_builder.package.judgements import read_judgements
from now_builder.tokenize.custom import CustomTokenizer
from now_builder.urls import canonical, site_of
from pc2_baseline.analysis.truth import read_truth
from pc2_baseline.config import read_settings

__all__ = ["ERRORS", "LONGEST", "mutate", "read", "seeds"]

ERRORS = (ConfigError, FormatError)
_FOLDER = Path(tempfile.mkdtemp(prefix="now-fuzz-"))
_KEYS = ["0_0", "0_1", "0_2"]
_PLAN = [Planned(key, 0, f"http://a/{key}", f"http://a/{key}", "a") for key in _KEYS]
_TABLES = {
    "judgements": {"key": _KEYS, "matched": ["match", "mismatch", "unsure"]},
    "truth": {"key": _KEYS, "matched": [True, False, None]},
    "beliefs": {"key": _KEYS, "clean_prob": [0.0, 0.5, 1.0]},
    "urls": {"url": ["http://a.test/", "b.test/x?q#f", "https://[::1]:80/"]},
}
_COCO = {
    "images": [{"id": 1, "file_name": "1.jpg", "width": 720, "height": 1280}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40], "area": 1200,
                     "iscrowd": 0}],
    "categories": [{"id": 1, "name": "button"}],
}  # fmt: skip
_MAPPING = 'classes = [["button", "按钮"]]\n[tags]\na = "button"\n[looks]\nlink = "button"\n'
_SETTINGS = '[method]\nname = "pc2"\n[train]\nepochs = 3\nlr = 0.1\n[data]\ntokenizer = "bpe"\n'


def _write_all(folder: Path) -> None:
    for name, table in _TABLES.items():
        frame = pd.DataFrame(table)
        frame.to_csv(folder / f"{name}.csv", index=False)
        frame.to_parquet(folder / f"{name}.parquet")
    (folder / "urls.txt").write_text("http://a.test/ # x\n\nb.test\thello\nhttp://\u4e2d.test/\n")
    (folder / "hosts.txt").write_text("a.test\n*.b.test # c\n[::1]:80\nhttp://c.test/x\n")
    words = WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
    (folder / "own.tokenizer.json").write_text(tokenizers.Tokenizer(words).to_str())
    (folder / "coco.json").write_text(json.dumps(_COCO))
    (folder / "mapping.toml").write_text(_MAPPING)
    (folder / "settings.toml").write_text(_SETTINGS)


def _read_urls(path: Path) -> None:
    for url in read_urls(path):
        if found := canonical(url):
            site_of(found)


def _cut(folder: Path) -> None:
    tokenizer = CustomTokenizer("own", folder / "own.tokenizer.json")
    list(tokenizer.cut(["hello", "\u4f60\u597d world", ""]))


_write_all(_FOLDER)
_KINDS = Kinds(
    _FOLDER,
    {
        "judgements.csv": lambda folder: read_judgements([folder / "judgements.csv"], _PLAN),
        "judgements.parquet": lambda folder: read_judgements(
            [folder / "judgements.parquet"], _PLAN
        ),
        "truth.csv": lambda folder: read_truth(folder / "truth.csv", {"key": _KEYS}),
        "truth.parquet": lambda folder: read_truth(folder / "truth.parquet", {"key": _KEYS}),
        "beliefs.csv": lambda folder: read_clean_prob(folder / "beliefs.csv", folder),
        "beliefs.parquet": lambda folder: read_clean_prob(folder / "beliefs.parquet", folder),
        "urls.csv": lambda folder: _read_urls(folder / "urls.csv"),
        "urls.parquet": lambda folder: _read_urls(folder / "urls.parquet"),
        "urls.txt": lambda folder: _read_urls(folder / "urls.txt"),
        "hosts.txt": lambda folder: read_hosts(folder / "hosts.txt"),
        "own.tokenizer.json": _cut,
        "coco.json": lambda folder: read_coco(folder / "coco.json"),
        "mapping.toml": lambda folder: read_mapping(folder / "mapping.toml"),
        "settings.toml": lambda folder: read_settings(str(folder / "settings.toml"), []),
    },
)
seeds, read, mutate = _KINDS.seeds, _KINDS.read, _KINDS.mutate
