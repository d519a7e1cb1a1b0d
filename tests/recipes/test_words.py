"""The recipe of the word reader: one small run, stopped and gone on with."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from now_builder.detect.model.text_encoder import DIMENSION
from now_builder.detect.model.weights import find_weights, load_detector
from now_builder.detect.training.run import checkpoint_path
from recipes.words import drawing, lexicon, train_words

pytestmark = pytest.mark.release
LANGUAGES = {"en", "de", "ru", "zh", "ja"}


@pytest.fixture
def small(monkeypatch):
    """Words of five languages, few canvases."""
    words = lexicon.read_lexicon()
    assert len(words) > 200
    for language, word in {"de": "Deutschland", "zh": "网络", "ru": "Россия"}.items():
        assert word in words[language][0]
    few = {language: tuple(part[::100] for part in words[language]) for language in LANGUAGES}
    fonts = train_words.fonts_by_language(few, [])
    monkeypatch.setattr(train_words, "read_lexicon", lambda: few)
    monkeypatch.setattr(train_words, "fonts_by_language", lambda *_: fonts)
    for name, value in {"BLOCK": 8, "BATCH": 4, "MEASURED": 4, "CHECKPOINT_EVERY": 1}.items():
        monkeypatch.setattr(train_words, name, value)
    # A process that draws would take longer to start than it has to draw.
    monkeypatch.setattr(train_words, "ProcessPoolExecutor", ThreadPoolExecutor)


@pytest.mark.usefixtures("small")
def test_a_detector_learns_to_read_and_a_stop_changes_nothing(tmp_path, monkeypatch, capsys):
    whole, weights = tmp_path / "whole.safetensors", tmp_path / "stopped.safetensors"
    options = ["--steps", "3", "--threads", "1"]
    train_words.main([str(whole), *options])
    assert "cosine" in capsys.readouterr().out
    take = train_words.Training.take_step

    def stopped(self, canvases):
        if self.step == 2:
            raise KeyboardInterrupt
        return take(self, canvases)

    with monkeypatch.context() as patch:
        patch.setattr(train_words.Training, "take_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_words.main([str(weights), *options])
    assert checkpoint_path(weights).exists()
    assert not weights.exists()
    train_words.main([str(weights), *options])
    assert "resuming from step 2" in capsys.readouterr().err
    assert weights.read_bytes() == whole.read_bytes()
    assert not checkpoint_path(weights).exists()

    before, _ = load_detector(find_weights(None), torch.device("cpu"))
    after, card = load_detector(weights, torch.device("cpu"))
    assert card.model.words
    assert card.words["steps"] == 3
    assert card.words["languages"] == 5
    assert set(card.words["words"]) == set(lexicon.SOURCES)
    kept = before.state_dict()
    for name, value in after.state_dict().items():
        assert name.startswith("patches.") or torch.equal(value, kept[name]), name
    page = torch.randint(0, 256, (1, 3, 640, 360), dtype=torch.uint8)
    boxes = [torch.tensor([[10.0, 10.0, 200.0, 90.0]])]
    assert after.export(torch.randn(1, DIMENSION), page, boxes).shape == (1, DIMENSION)
    with pytest.raises(SystemExit, match="expected a new"):
        train_words.main([str(weights), *options])


def test_words_keep_their_signs_and_what_stands_within_them():
    found = list(lexicon._words("ภาษาไทย, (हिन्दी) don't <b>x</b> 网络", "th"))
    assert found == ["ภาษาไทย", "हिन्दी", "don't", "x"]
    assert list(lexicon._words("用户 API 网络", "zh")) == ["用户", "网络"]


TEXTS = {"en": "a", "de": "Worte", "ar": "سلام", "th": "ที่นี่"}


@cache
def _fonts():
    return lexicon.fonts_by_language({each: ([text], [1.0]) for each, text in TEXTS.items()}, [])


def _style(size, language):
    return drawing._Style(drawing._load(_fonts()[language][0], round(2 * size)), size, language)


def _shown(size, language="de", left=20.0):
    """Return what a canvas with one word shows, and the canvas."""
    page = drawing._Page(Image.new("L", (2 * drawing.WIDTH, 2 * drawing.HEIGHT), 255), 0)
    page.write(TEXTS[language], left, 20.0, _style(size, language))
    pixels = np.asarray(page.image.reduce(2), dtype=np.uint8)
    canvas = drawing.Canvas(pixels, page.letters, page.unclear)
    batch = drawing.make_batch([canvas], np.random.default_rng(0), 72, varied=False)
    return batch.shown[0], canvas


def test_letters_of_another_scale_are_none_and_those_nearly_of_it_do_not_count():
    shown, canvas = _shown(16.0)
    row = int(canvas.letters[0].centre // drawing.DOWN)
    assert (shown == 1).any(dim=1).tolist() == [each == row for each in range(drawing.ROWS)]
    assert (shown[row] == -1).sum() == 0
    for size in (6.0, 32.0, 48.0):
        shown, canvas = _shown(size)
        assert canvas.pixels.min() < 100
        assert not shown.any()
    for shown, _ in (_shown(9.0), _shown(27.0), _shown(16.0, left=-10.0)):
        assert (shown == -1).any()
    assert not (_shown(27.0)[0] == 1).any()


def test_arabic_letters_stand_from_right_to_left_and_a_ligature_is_shared():
    _, canvas = _shown(16.0, "ar")
    assert [letter.unit[1] for letter in canvas.letters] == list(TEXTS["ar"])
    lefts = [letter.left for letter in canvas.letters]
    assert lefts == sorted(lefts, reverse=True)
    widths = [letter.right - letter.left for letter in canvas.letters]
    assert widths[1] == pytest.approx(widths[2])
    _, thai = _shown(16.0, "th")
    assert [letter.unit[1] for letter in thai.letters] == ["ท", "น"]
