"""A release of the small crawl, with a run on it in the documented format."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from now_builder.formats.io import write_json
from now_builder.formats.release import read_manifest, read_pairs, write_pairs
from now_builder.formats.shard import read_captures, read_rows, write_shard

HOSTILE = [
    "</script><img src=x onerror=\"document.title='owned'\">",
    "</style></p><script>document.title='owned'</script><h1>not a heading",
    "{{ 7 * 7 }} {% raw %} \" ' ` \\ \u2028 \u202e txet desrever",
    "مرحبا بكم في موقع الأخبار، آخر أخبار الرياضة اليوم",
    "ברוכים הבאים לאתר החדשות של ישראל",
    "骨頭和直線：漢字的寫法在日本和中國不同",
    "word " * 2000,
]


@dataclass(frozen=True, slots=True)
class World:
    """Everything that one walk down the road leaves."""

    captures: Path
    features: Path
    captions: Path
    release: Path


@pytest.fixture(scope="session")
def world(
    small_crawl: Path, small_features: Path, small_captions: Path, small_release: Path
) -> World:
    """A crawl, its features, captions and release; read only."""
    return World(small_crawl, small_features, small_captions, small_release)


@pytest.fixture
def hostile(world: World, tmp_path: Path) -> World:
    """The same with captions and a URL that would break a page that is not careful."""
    release = tmp_path / "hostile"
    shutil.copytree(world.release, release)
    pairs = read_pairs(release)
    changed = [
        replace(pair, caption=HOSTILE[place % len(HOSTILE)]) for place, pair in enumerate(pairs)
    ]
    changed[0] = replace(changed[0], url="javascript:document.title='owned'")
    write_pairs(release / "pairs.parquet", changed)
    captures, shard = tmp_path / "hostile-captures", int(changed[0].key[:5])
    shutil.copytree(world.captures, captures)
    urls = {pair.key: pair.url for pair in changed[:1]}
    rows = [replace(row, url=urls.get(row.key, row.url)) for row in read_rows(captures, shard)]
    write_shard(captures, shard, rows, list(read_captures(captures, shards=[shard])))
    return replace(world, captures=captures, release=release)


@pytest.fixture
def run(world: World, tmp_path: Path) -> Path:
    """The files of a run that ``docs/formats.md`` documents; the clean probability rises by row."""
    numpy = pytest.importorskip("safetensors.numpy")
    folder = tmp_path / "run"
    (folder / "divisions").mkdir(parents=True)
    manifest = read_manifest(world.release)
    pairs = manifest.counts["train"]
    numpy.save_file(
        {"clean_prob": np.linspace(0, 1, pairs)}, folder / "divisions" / "00003.safetensors"
    )
    numpy.save_file({"clean_prob": np.zeros(pairs)}, folder / "divisions" / "00004.safetensors")
    write_json(folder / "best" / "state.json", {"format": "pc2-checkpoint/1", "best_epoch": 3})
    print_of = manifest.fingerprints["train"]["bpe"]
    (folder / "run.toml").write_text(
        f'format = "pc2-run/1"\n[release]\nfingerprints = {{train = "{print_of}"}}\n'
        '[settings.data]\ntokenizer = "bpe"\n[settings.method]\nname = "crossfit"\n'
    )
    return folder
