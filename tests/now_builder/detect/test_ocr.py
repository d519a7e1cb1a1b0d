"""Text read off pixels: right strings, right places, and plain words where something is missing."""

import io
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.ops import box_iou

from now_builder.detect import ocr
from now_builder.detect.ocr import Recognizer, languages_of_page
from now_builder.detect.pixels import prefetch
from now_builder.detect.run import detect
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError
from now_builder.formats.features import open_features
from now_builder.formats.shard import HEIGHT, WIDTH, Capture, CaptureRow, Element
from now_builder.machine import doctor
from now_builder.machine.tessdata import debian_package, find_tessdata

ENGLISH, CHINESE, LIGHT = "Fresh bread every morning", "我们每天清晨烘焙面包", "About us"


def font(size):
    """Noto Sans CJK, which brings Latin letters too."""
    found = sorted(Path("/usr/share/fonts").rglob("NotoSansCJK-Regular.ttc"))
    assert found, "apt install fonts-noto-cjk"
    return ImageFont.truetype(found[0], size, index=2)


def picture(*lines, ground="white"):
    """A screenshot with lines at (left, top), of a size and colour; and where their ink is."""
    image = Image.new("RGB", (WIDTH, HEIGHT), ground)
    pen = ImageDraw.Draw(image)
    boxes = []
    for text, place, size, colour in lines:
        pen.text(place, text, fill=colour, font=font(size))
        boxes.append(tuple(map(float, pen.textbbox(place, text, font=font(size)))))
    return image, boxes


def capture(image, elements=(), key="00000_0000"):
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return Capture(key, buffer.getvalue(), b"", list(elements))


@pytest.fixture(scope="module")
def page():
    image, boxes = picture(
        (ENGLISH, (40, 200), 32, "black"),
        (CHINESE, (60, 500), 36, (40, 40, 60)),
        (LIGHT, (500, 800), 30, (60, 60, 60)),
    )
    return capture(image), boxes


@pytest.fixture(scope="module")
def read():
    return Recognizer("chi_sim+eng")


def test_english_and_chinese_lines_are_found_where_they_stand(read, page):
    lines = read(page[0])
    assert [line.text for line in lines] == [ENGLISH, CHINESE, LIGHT]
    assert {line.source for line in lines} == {"ocr"}
    overlap = box_iou(torch.tensor([line.box for line in lines]), torch.tensor(page[1]))
    assert overlap.diagonal().min() > 0.7


def test_light_text_is_read_a_blank_page_has_none_and_the_dom_record_is_not_looked_at(read):
    image, _ = picture((ENGLISH, (40, 200), 32, "white"), ground=(20, 30, 90))
    box = (0.0, 0.0, 300.0, 100.0)
    lying = [Element(box, "p", text="never on the screen", text_box=box)]
    assert [line.text for line in read(capture(image, lying))] == [ENGLISH]
    assert read(capture(Image.new("RGB", (WIDTH, HEIGHT), "white"))) == []


def test_what_it_is_not_sure_of_is_left_out(read, page, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), np.uint8)
    smudges = Image.fromarray(noise).resize((WIDTH, HEIGHT))
    sure = read(capture(smudges))
    monkeypatch.setattr(ocr, "CONFIDENCE", 0.0)
    assert len(sure) < len(read(capture(smudges)))
    monkeypatch.setattr(ocr, "CONFIDENCE", 100.0)
    assert read(page[0]) == []


def test_threads_read_what_one_alone_reads_whatever_the_order(read, page):
    other, _ = picture((LIGHT, (40, 200), 48, "black"), (ENGLISH, (40, 900), 40, "navy"))
    pages = [page[0], capture(other)] * 2
    alone = [Recognizer("chi_sim+eng")(each) for each in pages[:2]]
    assert list(prefetch(read, pages, 2)) == alone * 2


def test_detect_reads_pages_and_names_how(draw, weights, tmp_path):
    captures = tmp_path / "captures"
    draw(captures, pages=1, sites=1, shards=1)
    settings = DetectSettings(weights=weights, threads=1, device="cpu", words=False)
    files = {}
    for source in ("dom", "ocr", "none"):
        files[source] = tmp_path / f"{source}.h5"
        chosen = settings.model_copy(update={"text_source": source})
        assert detect(captures, files[source], chosen).fresh == 1
    scores = {}
    for source, path in files.items():
        with open_features(path) as file:
            scores[source] = file.read(slice(None)).scores
            assert file.attributes["text_source"] == source
            assert ("ocr" in file.attributes) == (source == "ocr")
            if source == "ocr":
                assert file.attributes["ocr"].endswith("chi_sim+eng, from 60 %")
    assert not np.array_equal(scores["ocr"], scores["none"])  # it did find text, and used it


def test_without_the_wrapper_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tesserocr", None)
    with pytest.raises(ConfigError, match=r"^.*pip install 'noise-of-web\[ocr\].*apt.*$"):
        Recognizer("eng")


@pytest.mark.parametrize(
    ("lang", "declared", "expected"),
    [("de", "en", "deu+eng"), ("en", "de", "eng"), ("und", "pt-BR", "por+eng"),
     (None, None, "chi_sim+eng"), ("zh", "zh-CN", "chi_sim+eng"),
     ("zh", "zh-Hant-HK", "chi_tra+eng"), ("zh", "zh_TW", "chi_tra+eng"),
     ("tlh", "", "chi_sim+eng")],
)  # fmt: skip
def test_languages_are_english_and_the_pages_own(lang, declared, expected):
    row = CaptureRow("a", "", "", "", "ok", lang=lang, lang_declared=declared)
    assert languages_of_page(row) == expected


def test_language_data_are_found_where_the_user_says_or_named(tmp_path, monkeypatch):
    for languages, problem in (("chi_sim+tlh_x", "tlh-x,"), ("+", "eng,")):
        with pytest.raises(ConfigError, match=f"install tesseract-ocr-{problem}"):
            Recognizer(languages)
    with pytest.raises(ConfigError, match=r"apt install tesseract-ocr-tlh-x tesseract-ocr-xyz,"):
        Recognizer("eng", {"a": "xyz+eng", "b": "tlh_x+eng"})
    there = find_tessdata(["eng"])
    assert there is not None
    shutil.copy(there / "eng.traineddata", tmp_path)
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    assert find_tessdata(["eng"]) == tmp_path
    assert find_tessdata(["eng", "chi_sim"]) is None
    (tmp_path / "eng.traineddata").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="cannot read"):
        Recognizer("eng")
    monkeypatch.setenv("TESSDATA_PREFIX", os.devnull)
    assert find_tessdata(["eng"]) is None


def test_the_doctor_names_what_reading_lacks_as_not_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    monkeypatch.setattr(doctor, "find_chromium", lambda: None)
    found = {finding.name: finding for finding in doctor.check()}
    chinese = found["OCR of Chinese"]
    assert str(chinese).startswith("absent  OCR of Chinese: no chi_sim.traineddata")
    assert "python tesserocr" in found
    monkeypatch.delenv("TESSDATA_PREFIX")
    assert {f.name: f for f in doctor.check()}["OCR of Chinese"].found
    assert debian_package("script/HanS") == "tesseract-ocr-script-hans"
