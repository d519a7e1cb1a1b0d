"""A small crawl in the real formats, for the stages that read one."""

import hashlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from now_builder.formats.features import FeatureBatch, write_features
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    Element,
    Planned,
    read_rows,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan, write_split

_WORDS = {
    "zh": "手机 网站 新闻 天气 电影 音乐 旅游 美食 汽车 房产 健康 教育",
    "en": "phones website news weather films music travel food cars houses health schools",
    "ja": "電話 サイト ニュース 天気 映画 音楽 旅行 料理 自動車 住宅 健康 教育",
    "ru": "телефоны сайт новости погода фильмы музыка поездки еда машины дома школа",
    "ko": "전화 사이트 뉴스 날씨 영화 음악 여행 음식 자동차 주택 건강 교육",
}
_SHARDS = 4


def _caption(lang: str, draw: random.Random) -> str:
    words = [draw.choice(_WORDS[lang].split()) for _ in range(draw.randint(4, 14))]
    joint = "" if lang in {"zh", "ja"} else " "
    return joint.join(words) + f"{joint}{draw.randint(1, 40)}" + ("。" if not joint else ".")


def _screenshot(page: int) -> bytes:
    picture = Image.new("RGB", (WIDTH, HEIGHT), (page * 7 % 256, page * 13 % 256, 90))
    ImageDraw.Draw(picture).rectangle((40, 60 + page % 400, 400, 500 + page % 400), fill="white")
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _row(line: Planned, page: int, draw: random.Random) -> tuple[CaptureRow, Capture | None]:
    place = (line.key, line.url, line.url_canonical, line.site)
    if page % 17 == 5:
        return CaptureRow(*place, "failed", error="http_404", http_status=404), None
    if page % 29 == 7:
        return CaptureRow(*place, "refused", error="robots"), None
    lang = list(_WORDS)[int(line.url[11:13]) % 5]
    caption = None if page % 23 == 11 else _caption(lang, draw)
    if page % 19 == 3:
        caption = "Welcome to our website."
    if page % 31 == 9:
        return CaptureRow(*place, "duplicate", caption=caption, duplicate_of="00000_0000"), None
    picture = _screenshot(page if page % 13 else 0)
    sha256 = hashlib.sha256(picture).hexdigest()
    row = CaptureRow(
        *place, "ok", final_url=line.url, http_status=200, title=f"page {page}", caption=caption,
        caption_source=None if caption is None else ("name" if page % 5 else "og"), lang=lang,
        fetched_at=f"2026-03-{1 + page % 28:02d}T10:00:00Z", sha256=sha256, phash=sha256[:16],
        ink=0.25, ink_middle=0.5, attempts=1, elapsed_s=0.5,
    )  # fmt: skip
    html = f"<html><title>page {page}</title>".encode()
    return row, Capture(line.key, picture, html, [Element((0.0, 0.0, 720.0, 1280.0), "body")])


def write_small_crawl(
    captures: Path, pages: int = 200, seed: int = 0, sites: int = 20, address: str = ""
) -> None:
    """Write plan, split and shards of a crawl with failures, duplicates and missing captions."""
    draw = random.Random(seed)
    captures.mkdir(parents=True, exist_ok=True)
    plan = []
    for page in range(pages):
        shard, place = page % _SHARDS, page // _SHARDS
        site = f"site{page % sites:02d}.test"
        url = f"http://{site}/page/{page}"
        plan.append(Planned(f"{shard:05d}_{place:04d}", shard, url, url, address or site))
    plan.sort(key=lambda line: line.key)
    shares = Shares(train=0.5, dev=0.2, test=0.3)
    write_split(captures / "split.toml", SplitPlan(seed=0, shares=shares))
    write_plan(captures, plan)
    for shard in range(_SHARDS):
        own = (line for line in plan if line.shard == shard)
        made = [_row(line, int(line.url.rsplit("/", 1)[1]), draw) for line in own]
        rows, members = [row for row, _ in made], [capture for _, capture in made if capture]
        write_shard(captures, shard, rows, members)


def write_small_features(path: Path, keys: list[str], *, half: bool = False) -> None:
    """Write plausible features of some pages; every thirteenth page looks like the first."""
    draw = np.random.default_rng(3)

    def batches():
        for start in range(0, len(keys), 16):
            part = keys[start : start + 16]
            count = len(part)
            corner = draw.random((count, 36, 2), dtype=np.float32) * 600
            yield FeatureBatch(
                part,
                draw.standard_normal((count, 36, 768), dtype=np.float32),
                np.concatenate([corner, corner + 50], 2).astype(np.float32),
                np.sort(draw.random((count, 36), dtype=np.float32), 1)[:, ::-1].copy(),
                draw.integers(0, 9, (count, 36)).astype(np.int16),
                np.repeat([[0] * 30 + [2] * 6], count, 0).astype(np.int8),
                np.full(count, 30, np.int16),
            )

    write_features(path, batches(), {"detector": "tiny", "weights_sha256": "0" * 64}, half)


@pytest.fixture(scope="session")
def small_crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crawl of 200 pages on 20 sites; read only."""
    captures = tmp_path_factory.mktemp("small") / "captures"
    write_small_crawl(captures)
    return captures


@pytest.fixture(scope="session")
def make_crawl() -> Callable[..., None]:
    """Write another crawl: ``make_crawl(folder, pages, seed, sites)``."""
    return write_small_crawl


@pytest.fixture(scope="session")
def make_features() -> Callable[..., None]:
    """Write features: ``make_features(path, keys, half=False)``."""
    return write_small_features


@pytest.fixture(scope="session")
def small_features(small_crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of every page of the small crawl; read only."""
    path = tmp_path_factory.mktemp("small-features") / "features.h5"
    write_small_features(path, [row.key for row in read_rows(small_crawl) if row.status == "ok"])
    return path


@pytest.fixture(scope="session")
def small_captions(small_crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of the small crawl under the three tokenizers; read only."""
    from now_builder.tokenize.run import tokenize
    from now_builder.tokenize.settings import TokenizeSettings

    folder = tmp_path_factory.mktemp("small-captions") / "captions"
    tokenize(small_crawl, folder, TokenizeSettings(bert="learn"))
    return folder


@pytest.fixture(scope="session")
def small_release(
    small_crawl: Path, small_features: Path, small_captions: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """The small crawl packaged, under a name that needs quotes; read only."""
    from now_builder.package.run import package
    from now_builder.package.settings import PackageSettings

    release = tmp_path_factory.mktemp("small-release") / "release"
    settings = PackageSettings(name='A "name": odd', licence="cc-by-nc-4.0")
    package(small_crawl, small_features, small_captions, release, settings)
    return release
