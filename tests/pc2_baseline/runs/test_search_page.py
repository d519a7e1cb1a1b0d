"""Pages found by a picture, and the page that asks for words or a picture."""

import html
import http.client
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

from now_builder.detect.run import detect
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.extract import RegionExtractor
from now_builder.formats.features import open_features, write_features
from now_builder.formats.release import (
    DATA_FOLDER,
    Pair,
    read_manifest,
    read_pairs,
    write_manifest,
    write_pairs,
)
from now_builder.formats.shard import read_captures, read_rows
from now_builder.machine.chromium import find_chromium
from pc2_baseline.config import read_settings
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.search.page import MOST_BYTES, file_of, serving
from pc2_baseline.runs.search.searcher import open_search
from pc2_baseline.runs.train import train
from tests.now_builder.detect.conftest import draw_captures

PAGES = 8
HOSTILE = "<script>document.title = 'owned'</script> & “news”"
SETTINGS = [
    "data.tokenizer=jieba", "method.dim=4", "train.epochs=1", "train.device=cpu",
    "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


@dataclass(frozen=True)
class World:
    """Captures, a run on a release whose test split was detected in them, and screenshots by key.

    The last page was not captured.
    """

    captures: Path
    run: Path
    pages: list[Pair]
    screenshots: dict[str, bytes]


@pytest.fixture(scope="module")
def world(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    release, captures, features = folder / "release", folder / "captures", folder / "features.h5"
    draw_captures(captures, PAGES, 4, 1)
    detect(
        captures,
        features,
        DetectSettings(proposals=40, text_source="none", device="cpu", threads=1),
    )
    shutil.copytree(tiny, release)
    test = release / DATA_FOLDER / "test.h5"
    with open_features(features) as found:
        attributes = {
            name: value
            for name, value in found.attributes.items()
            if name not in {"format", "complete"}
        }
        write_features(test, list(found.batches()), attributes, pages=PAGES)
        keys = found.keys
    (test.parent / "test_ids.txt").write_text("".join(f"{key}\n" for key in keys))
    manifest = read_manifest(release)  # the test split has other keys than at planting
    prints = {name: own for name, own in manifest.fingerprints.items() if name != "test"}
    write_manifest(release, manifest.model_copy(update={"fingerprints": prints}))
    urls = {row.key: row.url for row in read_rows(captures)}
    pairs = [
        pair
        if pair.split != "test"
        else replace(
            pair,
            key=keys[pair.pair_index],
            url=urls[keys[pair.pair_index]] if pair.pair_index < PAGES - 1 else "javascript:x",
            caption=HOSTILE,
            phash=None,
        )
        for pair in read_pairs(release)
    ]
    write_pairs(release / "pairs.parquet", pairs)
    train(release, folder / "run", read_settings("ridge", SETTINGS))
    pages = sorted(
        (pair for pair in pairs if pair.split == "test"), key=lambda pair: pair.pair_index
    )
    shots = {page.key: page.screenshot for page in read_captures(captures)}
    return World(captures, folder / "run", pages, shots)


@pytest.fixture(scope="module")
def served(world):
    with open_search(world.run) as searcher, serving(searcher, world.captures, 5, 0) as url:
        yield url


def ask(url, method="GET", path="", body=None, **headers):
    """Ask the page; return status and text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, parts.path + path, body, named)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def form(content, name="picture", file="a.png"):
    """Return a form with a file, as browsers send it, and its media type."""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'
    body = f"{head}Content-Type: image/png\r\n\r\n".encode() + content + b"\r\n--edge--\r\n"
    return body, "multipart/form-data; boundary=edge"


def post(url, content, **headers):
    body, kind = form(content)
    return ask(url, "POST", "", body, Content_Type=kind, **headers)


def keys_of(text):
    return re.findall(r"<small>(\d{5}_\d{4})</small>", text.decode())


def test_a_captured_screenshot_finds_what_its_page_finds(world):
    """Described anew, it has the features of the release."""
    scores = similarity(world.run)
    with open_search(world.run) as searcher:
        for row in (0, 5):
            shot = world.screenshots[world.pages[row].key]
            found = searcher.by_picture(shot, "shot.png", 4)
            order = np.argsort(-scores[row], kind="stable")[:4]
            assert [hit.key for hit in found.hits] == [world.pages[one].key for one in order]
            assert [hit.score for hit in found.hits] == pytest.approx(scores[row][order], abs=1e-3)


def test_other_weights_than_the_releases_are_refused_by_their_hash(world, tmp_path):
    release = tmp_path / "release"
    shutil.copytree(world.run.parent / "release", release)
    path = release / DATA_FOLDER / "test.h5"
    with open_features(path) as features:
        kept = dict(features.attributes) | {"weights_sha256": "0123456789abcdef"}
        batches = list(features.batches())
    plain = {name: value for name, value in kept.items() if name not in {"format", "complete"}}
    write_features(path, batches, plain, pages=PAGES)
    wanted = r"weights_sha256 0123456789ab…, --weights tiny-web has [0-9a-f]{12}…"
    with (
        open_search(world.run, release=release) as searcher,
        pytest.raises(ConfigError, match=wanted),
    ):
        searcher.by_picture(world.screenshots[world.pages[0].key], "shot.png", 1)


def _png(size):
    file = io.BytesIO()
    Image.new("1", size).save(file, "PNG")
    return file.getvalue()


def test_what_is_no_picture_is_refused_and_named(world):
    shot = world.screenshots[world.pages[0].key]
    bad = {
        b"GIF89a": "not a picture, expected PNG, WebP or JPEG",
        b"%!PS-Adobe-3.0 EPSF-3.0\n": "not a picture, expected PNG, WebP or JPEG",
        shot[:2000]: "not a readable picture",
        _png((10_000, 6_000)): "10000 x 6000 pixels, expected at most 50 million",
        _png((20_000, 20_000)): "20000 x 20000 pixels|not a readable picture",
    }
    with open_search(world.run) as searcher:
        for content, problem in bad.items():
            with pytest.raises(FormatError, match=f"^it.png: ({problem})"):
                searcher.by_picture(content, "it.png", 1)


def test_the_page_finds_words_and_shows_captured_pages(world, served):
    status, text = ask(served, path="?words=w0+w1")
    with open_search(world.run) as searcher:
        expected = [hit.key for hit in searcher.by_words("w0 w1", 5).hits]
    assert (status, keys_of(text)) == (200, expected)
    assert b"<script" not in text
    assert b"&lt;script&gt;" in text
    assert b'href="javascript' not in text
    for key in expected:
        there = key != world.pages[-1].key
        assert (f'src="pictures/{key}"'.encode() in text) == there
        status, picture = ask(served, path=f"pictures/{key}")
        assert (status, picture if there else None) == (
            (200, world.screenshots[key]) if there else (404, None)
        )
    status, text = ask(served, path="?words=%3Cb%3Ewhales%FF")
    assert status == 400
    assert "no token of it is in the jieba vocabulary" in text.decode()
    assert b"<b>whales" not in text


def test_the_page_opens_with_pages_and_three_captions_to_search_for(world, served):
    status, text = ask(served)
    assert status == 200
    assert b"<script" not in text
    shown = [key.decode() for key in re.findall(rb'src="pictures/([^"]+)"', text)]
    assert shown == [page.key for page in world.pages[:-1]][:12]
    examples = re.findall(r'href="(\?words=[^"]+)"', text.decode())
    assert len(examples) == 3
    for path in examples:
        words = parse_qs(html.unescape(path)[1:])["words"][0]
        assert any(page.caption.startswith(words) for page in world.pages)


def test_the_page_takes_a_picture_and_says_what_is_wrong_with_one(world, served):
    shot = world.screenshots[world.pages[3].key]
    status, text = post(served, shot)
    with open_search(world.run) as searcher:
        expected = [hit.key for hit in searcher.by_picture(shot, "a.png", 5).hits]
    assert (status, keys_of(text)) == (200, expected)
    assert b'src="data:image/jpeg;base64,' in text
    for content, problem in ((b"", "no picture was chosen"), (b"\0" * 99, "not a picture")):
        status, text = post(served, content)
        assert (status, problem in text.decode()) == (400, True)
    status, text = post(served, b"\0" * (MOST_BYTES + 1))
    assert (status, "too large, expected at most 20 MiB" in text.decode()) == (400, True)


def test_a_picture_without_the_detectors_packages_is_answered_in_a_line(world, monkeypatch):
    missing = ModuleNotFoundError("No module named 'torchvision'", name="torchvision")

    def describe(*_):
        raise missing

    monkeypatch.setattr(RegionExtractor, "__init__", describe)
    with open_search(world.run) as searcher, serving(searcher, None, 5, 0) as url:
        status, text = post(url, world.screenshots[world.pages[0].key])
    assert status == 400
    assert "torchvision is not installed, expected it here: pip install" in text.decode()


def test_who_does_not_know_the_url_or_comes_from_elsewhere_is_not_answered(world, served):
    bare = re.match(r"http://127\.0\.0\.1:\d+/", served)[0]
    for path in ("", "?words=w0", f"pictures/{world.pages[0].key}"):
        assert ask(bare, path=path)[0] == 404
    assert post(bare, b"x")[0] == 404
    assert post(served, b"x", Origin="http://evil.test")[0] == 403
    assert ask(served, path="pictures/../run.toml")[0] == 404
    assert ask(served, path="?" + "words=w0&" * 30)[0] == 200
    assert ask(served, "POST", "", b"", Content_Length="9" * 5000)[0] == 400
    for kind in ("text/plain", "multipart/form-data", "multipart/form-data; boundary=other"):
        assert ask(served, "POST", "", form(b"x")[0], Content_Type=kind)[0] == 400


def test_a_file_comes_through_a_form_byte_for_byte():
    content = bytes(range(256)) + b"\r\n\n\r--edge \r\r\n\x0c\x1c\x85" + bytes(range(255, -1, -1))
    for tail in (b"", b"\r", b"\n", b"\r\n"):
        body, kind = form(content + tail, file="größe.png")
        assert file_of(kind, body) == (content + tail, "größe.png")
    body, kind = form(b"x", file="a.png")
    name = file_of(kind, body.replace(b"a.png", b"\xff\xed\xa0\xbd.png"))[1]
    assert "\N{REPLACEMENT CHARACTER}" in name.encode().decode()
    body, kind = form(b"x", name="other")
    assert file_of(kind, body) is None


def test_ctrl_c_ends_the_page_in_one_line(world):
    command = [sys.executable, "-c", "from pc2_baseline.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "search", world.run, "--serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert re.match(r"Search here: http://127\.0\.0\.1:\d+/\S+/$", process.stdout.readline())
        assert process.stdout.readline() == "Ctrl-C ends.\n"
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch("stopped: .*\n", told)


@pytest.mark.browser
def test_a_browser_searches_by_words_and_by_a_picture(world, served, tmp_path):
    """No sideways scrolling on a phone, nothing blocked or run, every picture loads."""
    driver = pytest.importorskip("playwright.sync_api")
    shot = tmp_path / "größe.png"
    shot.write_bytes(world.screenshots[world.pages[3].key])
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page, messages = browser.new_page(viewport={"width": 390, "height": 800}), []
        page.on("console", lambda message: messages.append(message.text))
        page.on("requestfailed", lambda request: messages.append(request.url))
        page.goto(served)
        page.get_by_label("Words").fill("w0 w1")
        page.get_by_role("button", name="Search words").click()
        driver.expect(page.locator("li")).to_have_count(5)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_label("Picture").set_input_files(shot)
        page.get_by_role("button", name="Search picture").click()
        driver.expect(page.locator("h2")).to_have_text("Captions nearest to größe.png")
        every = "document.images.length > 1 && [...document.images].every(i => i.naturalWidth > 0)"
        page.wait_for_function(every)
        assert page.title() == "Search 8 pages"
        assert messages == []
        browser.close()
