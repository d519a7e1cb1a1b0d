"""The recipe of the word reader: one small run, stopped and gone on with."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from now_builder.detect.model.text_encoder import DIMENSION
from now_builder.detect.model.weights import find_weights, load_detector
from now_builder.detect.training.checkpoints import checkpoint_path
from recipes.words import lexicon, train_words

LANGUAGES = {"en", "de", "ru", "zh", "ja"}


@pytest.fixture
def small(monkeypatch):
    """Words of five languages, few canvases."""
    words = lexicon.read_lexicon()
    assert len(words) > 200
    for language, word in {"de": "Deutschland", "zh": "网络", "ru": "Россия"}.items():
        assert word in words[language][0]
    few = {language: tuple(part[::20] for part in words[language]) for language in LANGUAGES}
    fonts = train_words.fonts_by_language(few, [])
    monkeypatch.setattr(train_words, "read_lexicon", lambda: few)
    monkeypatch.setattr(train_words, "fonts_by_language", lambda *_: fonts)
    for name, value in {"BLOCK": 16, "BATCH": 8, "MEASURED": 8, "CHECKPOINT_EVERY": 2}.items():
        monkeypatch.setattr(train_words, name, value)
    # A process that draws would take longer to start than it has to draw.
    monkeypatch.setattr(train_words, "ProcessPoolExecutor", ThreadPoolExecutor)


@pytest.mark.usefixtures("small")
def test_a_detector_learns_to_read_and_a_stop_changes_nothing(tmp_path, monkeypatch, capsys):
    whole, weights = tmp_path / "whole.safetensors", tmp_path / "stopped.safetensors"
    options = ["--steps", "5", "--threads", "1"]
    train_words.main([str(whole), *options])
    assert "cosine" in capsys.readouterr().out
    take = train_words.Training.take_step

    def stopped(self, canvases):
        if self.step == 3:
            raise KeyboardInterrupt
        return take(self, canvases)

    with monkeypatch.context() as patch:
        patch.setattr(train_words.Training, "take_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_words.main([str(weights), *options])
    assert checkpoint_path(weights).exists()
    assert not weights.exists()
    train_words.main([str(weights), *options])
    assert "goes on from step 2" in capsys.readouterr().err
    assert weights.read_bytes() == whole.read_bytes()
    assert not checkpoint_path(weights).exists()

    before, _ = load_detector(find_weights(None), torch.device("cpu"))
    after, card = load_detector(weights, torch.device("cpu"))
    assert card.model.words
    assert card.words["steps"] == 5
    assert card.words["languages"] == 5
    assert set(card.words["words"]) == set(lexicon.SOURCES)
    kept = before.state_dict()
    for name, value in after.state_dict().items():
        assert name.startswith("patches.") or torch.equal(value, kept[name]), name
    page = torch.randint(0, 256, (1, 3, 640, 360), dtype=torch.uint8)
    boxes = [torch.tensor([[10.0, 10.0, 200.0, 90.0]])]
    assert after.export(torch.randn(1, DIMENSION), page, boxes).shape == (1, DIMENSION)
    with pytest.raises(SystemExit, match="not there yet"):
        train_words.main([str(weights), *options])
