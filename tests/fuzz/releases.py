"""The readers of releases and captures: one small file of each kind, mutated."""

import io
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from kinds import Kinds
from PIL import Image

from now_builder.crawl.archive import Archive, NotArchived, read_pages
from now_builder.formats.captions import (
    make_vocabulary,
    read_captions,
    read_vocabulary,
    write_captions,
    write_vocabulary,
)
from now_builder.formats.noise import read_noise
from now_builder.formats.precomp import read_texts as read_field_texts
from now_builder.formats.release import (
    Manifest,
    Pair,
    Reject,
    check_files,
    read_image_identities,
    read_pairs,
    read_split_captions,
    stream_rejects,
    write_manifest,
    write_pairs,
    write_rejects,
)
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Element,
    Exchange,
    Planned,
    locate_screenshots,
    open_screenshot,
    read_captures,
    read_place,
    read_plan,
    read_rows,
    read_texts,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan, read_split, write_split
from now_builder.formats.verdicts import COLUMNS, read_verdicts
from now_builder.formats.warc import read_exchanges, write_wacz, write_warc

_AT = "2026-01-02T03:04:05.678+00:00"
_PLAN = SplitPlan(shares=Shares(train=0.5, dev=0.25, test=0.25))


def _write_all(folder: Path) -> None:
    """Write a captures folder, a release and an archive of the authors' form, all very small."""
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "PNG")
    urls = {"url": "http://a.test/", "url_canonical": "http://a.test/", "site": "a.test"}
    row = CaptureRow("00000_0000", **urls, status="ok", caption="a b", redirects=["x"])
    answer = (("Content-Type", "text/html"), ("Location", "x"))
    capture = Capture(
        row.key, picture.getvalue(), b"<p>", [Element((0.0, 0.0, 1.0, 1.0), "p", text="t")],
        (Exchange(urls["url"], _AT, "GET", (("Accept", "*"),), 200, "OK", answer),),
    )  # fmt: skip
    write_plan(folder, [Planned(row.key, 0, **urls)])
    write_shard(folder, 0, [row], [capture])
    write_warc(folder, 0, [(row, capture)])
    write_wacz(folder, folder / "site.wacz")
    write_split(folder / "split.toml", _PLAN)
    write_captions(folder / "bert.txt", [(row.key, [4, 5])])
    write_vocabulary(folder / "bert.vocab.json", make_vocabulary(["a", "b"], "bert", "s", "l"))
    pair = Pair(row.key, "test", 0, urls["url"], "a.test", "a b", "name", "en", "0" * 16, "0" * 64)
    write_pairs(folder / "pairs.parquet", [pair])
    write_rejects(folder / "rejects.parquet", [Reject(row.key, "u", "s", "test", "lang", "d")])
    entry = {"bert.txt": {"sha256": "0" * 64, "bytes": 15}}
    write_manifest(
        folder,
        Manifest(
            name="n", created_at="", split=_PLAN, counts={"test": 1}, rejects={},
            fingerprints={"test": {"bert": "0" * 64}}, detector={}, settings={"a": [1]},
            versions={}, files=entry,
        ),
    )  # fmt: skip
    (folder / "verdicts.csv").write_text(f"{','.join(COLUMNS)}\nk,u,test,en,match,j,now,1.5,n\n")
    (folder / "field.tsv").write_text('image\ta caption\nimage\t"another"\n')
    np.save(folder / "noise.npy", np.array([1, 0]))
    archive = folder / "archive"
    archive.mkdir()
    np.save(archive / "test_ims.npy", np.zeros((1, 36, 1), np.float32))
    (archive / "test_caps_bert.txt").write_text("4,5,\n")


def _read_tar(folder: Path) -> None:
    for capture in read_captures(folder, shards=[0]):
        open_screenshot(capture.screenshot, "screenshot")
    for place in locate_screenshots(folder, 0).values():
        read_place(place)


def _read_rows(folder: Path) -> None:
    read_texts(folder, 0)
    read_rows(folder, 0)


def _read_wacz(path: Path) -> None:
    with closing(Archive(path)) as archive:
        for url in read_pages(path):
            with suppress(NotArchived):
                archive.answer(url, None, 1000)


def _read_archive(folder: Path) -> None:
    read_split_captions(folder / "archive", "test", "bert")
    read_image_identities(folder / "archive", "test")


READER = Kinds(
    _write_all,
    {
        "bert.vocab.json": read_vocabulary,
        "bert.txt": read_captions,
        "split.toml": read_split,
        "noise.npy": lambda path: read_noise(path, 2, 2),
        "verdicts.csv": read_verdicts,
        "field.tsv": read_field_texts,
        "site.wacz": _read_wacz,
    },
    {
        "pairs.parquet": read_pairs,
        "rejects.parquet": lambda folder: list(stream_rejects(folder)),
        "plan.parquet": read_plan,
        "00000.parquet": _read_rows,
        "00000.tar": _read_tar,
        "00000.warc.gz": lambda folder: read_exchanges(folder, 0),
        "manifest.json": check_files,
        "archive/test_ims.npy": _read_archive,
        "archive/test_caps_bert.txt": _read_archive,
    },
)
