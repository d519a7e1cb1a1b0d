"""The readers of what a user brings: lists, tables, tokenizers, labels, settings."""

import gzip
import json
from pathlib import Path

import pandas as pd
import tokenizers
from kinds import Kinds
from tokenizers.models import WordLevel

from now_builder.crawl.plan.urls import read_urls
from now_builder.detect.labels.coco import read_coco
from now_builder.detect.labels.mapping import read_mapping
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.shard import Planned
from now_builder.formats.tables import read_hosts
from now_builder.package.judgements import read_judgements
from now_builder.package.licences import read_sites
from now_builder.tokenize.custom import read_custom
from now_builder.urls import canonical, site_of
from pc2_baseline.analysis.truth import read_truth
from pc2_baseline.config import read_settings

_KEYS = ["0_0", "0_1", "0_2"]
_PLAN = [Planned(key, 0, f"http://a/{key}", f"http://a/{key}", "a") for key in _KEYS]
_TABLES = {
    "sites": {
        "repository": "a/b",
        "commit": "c",
        "host": [f"h{key}.test" for key in _KEYS],
        "licence": "MIT",
    },
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
    (folder / "urls.jsonl").write_text(
        '{"url": "a.test"}\ntest,b)/ 20260102030405 {"url": "b.test"}\n'
    )
    (folder / "urls.xml").write_text("<urlset><url><loc>http://a.test/</loc></url></urlset>")
    (folder / "urls.gz").write_bytes(gzip.compress(b"1,a.test\n2,b.test\n"))
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


def _cut(path: Path) -> None:
    list(read_custom(path, "own").cut(["hello", "\u4f60\u597d world", ""]))


READER = Kinds(
    _write_all,
    {
        "sites.csv": read_sites,
        "sites.parquet": read_sites,
        "judgements.csv": lambda path: read_judgements([path], _PLAN),
        "judgements.parquet": lambda path: read_judgements([path], _PLAN),
        "truth.csv": lambda path: read_truth(path, {"key": _KEYS}),
        "truth.parquet": lambda path: read_truth(path, {"key": _KEYS}),
        "beliefs.csv": lambda path: read_clean_prob(path, path.parent),
        "beliefs.parquet": lambda path: read_clean_prob(path, path.parent),
        "urls.csv": _read_urls,
        "urls.parquet": _read_urls,
        "urls.gz": _read_urls,
        "urls.jsonl": _read_urls,
        "urls.txt": _read_urls,
        "urls.xml": _read_urls,
        "hosts.txt": read_hosts,
        "own.tokenizer.json": _cut,
        "coco.json": read_coco,
        "mapping.toml": read_mapping,
        "settings.toml": lambda path: read_settings(str(path), []),
    },
)
