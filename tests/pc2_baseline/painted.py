"""Captures of painted pages and the release of their pairs, for networks that see pixels."""

import hashlib
import io

import numpy as np
from PIL import Image, ImageDraw

from now_builder.formats.captions import make_vocabulary, write_vocabulary
from now_builder.formats.io import write_text
from now_builder.formats.release import Manifest, Pair, fingerprint, write_manifest, write_pairs
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    Planned,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan

WORDS = [f"{kind}{number}" for number in range(8) for kind in ("a", "b", "c")]
"""Three words a topic, which is a colour and a place."""
SIZES = {"train": 24, "dev": 8, "test": 8}


def paint(topic, page):
    picture = Image.new("RGB", (WIDTH, HEIGHT), (60 * (topic % 4), 250 - 60 * (topic // 2), 90))
    left, top = 300 * (topic % 2) + page % 7 * 10, 300 * (topic // 2)
    ImageDraw.Draw(picture).rectangle((left, top, left + 300, top + 250), fill="white")
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


def write_painted(folder, sizes=SIZES, mismatch=0.0, seed=0):
    """Write ``captures``, ``release`` and ``truth.csv``; captions of some training pairs move."""
    draw, pairs, plan, shots, prints = np.random.default_rng(seed), [], [], {}, {}
    truth = ["key,matched\n"]
    for split, size in sizes.items():
        topics = draw.integers(8, size=size)
        wrong = draw.permutation(size)[: int(mismatch * size) if split == "train" else 0]
        said = topics.copy()
        said[wrong] = topics[np.roll(wrong, 1)]
        ids = [(4 + 3 * topic + draw.integers(3, size=draw.integers(2, 6))).tolist()
               for topic in said]  # fmt: skip
        keys = [f"00000_{len(plan) + row:04d}" for row in range(size)]
        for row, key in enumerate(keys):
            url, site = f"http://site{key}.test/", f"site{key}.test"
            text = " ".join(WORDS[number - 4] for number in ids[row])
            shots[key] = paint(int(topics[row]), row)
            pairs.append(Pair(key, split, row, url, site, text, "name", "en", f"{0:016x}", key))
            plan.append(Planned(key, 0, url, url, site))
            truth.append(f"{key},{split != 'train' or row not in wrong}\n")
        data = folder / "release" / "now100k_precomp"
        write_text(data / f"{split}_ids.txt", "".join(f"{key}\n" for key in keys))
        lines = "".join(f"{','.join(map(str, own))}\n" for own in ids)
        write_text(data / f"{split}_caps_jieba.txt", lines)
        prints[split] = {"jieba": fingerprint(keys, ids)}
    write_pairs(folder / "release" / "pairs.parquet", pairs)
    vocabulary = make_vocabulary(WORDS, "jieba", "painted", "train")
    path = folder / "release" / "vocab" / "now100k_precomp_vocab_jieba.json"
    write_vocabulary(path, vocabulary)
    write_text(folder / "truth.csv", "".join(truth))
    manifest = Manifest(
        name="painted", created_at="2026-01-01", files={}, rejects={}, detector={}, versions={},
        split=SplitPlan(shares=Shares(train=0.6, dev=0.2, test=0.2)), settings={},
        counts=dict(sizes), fingerprints=prints,
    )  # fmt: skip
    write_manifest(folder / "release", manifest)
    (folder / "captures").mkdir()
    write_plan(folder / "captures", plan)
    rows = [
        CaptureRow(
            line.key, line.url, line.url_canonical, line.site, "ok", phash=f"{0:016x}",
            sha256=hashlib.sha256(shots[line.key]).hexdigest(),
        )
        for line in plan
    ]  # fmt: skip
    captured = (Capture(line.key, shots[line.key], b"<html>", []) for line in plan)
    write_shard(folder / "captures", 0, rows, captured)
    return folder
