"""Training of the word reader: what is drawn, what is to be read of it, kills, and the outcome."""

import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Executor, Future

import numpy as np
import pytest
import torch

from now_builder.detect.model.text_encoder import DIMENSION
from now_builder.detect.model.weights import (
    card_path,
    find_weights,
    load_detector,
    read_card,
    write_weights,
)
from now_builder.detect.settings import TrainDetectorSettings, TrainWordsSettings
from now_builder.detect.training.checkpoints import checkpoint_path
from now_builder.detect.training.recipe import resolve_recipe
from now_builder.detect.training.words import fonts, lexicon
from now_builder.detect.training.words import run as words
from now_builder.detect.training.words.batch import COLUMNS, ROWS, make_batch
from now_builder.detect.training.words.drawing import HEIGHT, WIDTH, Canvas, Letter, Writer
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.word_vectors import is_unspaced, spans, unit_vector

LEXICON = {
    "en": (["water", "mountain", "garden", "window", "yellow", "market"], [1.0] * 6),
    "de": (["straße", "größe", "über", "fenster"], [2.0, 1.0, 1.0, 1.0]),
    "ru": (["привет", "город", "река"], [1.0] * 3),
    "zh": (["中国", "网络", "手机"], [1.0] * 3),
    "ja": (["カード", "こんにちは"], [1.0] * 2),
}
QUICK = {"steps": 6, "checkpoint_every": 2, "threads": 1}


@pytest.fixture(scope="module")
def found_fonts():
    return fonts.fonts_by_language(LEXICON, [])


@pytest.fixture(scope="module")
def writer(found_fonts):
    return Writer(LEXICON, found_fonts)


@pytest.fixture
def quick(monkeypatch, found_fonts):
    """The command with a small lexicon, few canvases, and no process that draws."""
    monkeypatch.setattr(words, "read_lexicon", lambda: LEXICON)
    monkeypatch.setattr(words, "fonts_by_language", lambda *_: found_fonts)
    monkeypatch.setattr(words, "BLOCK", 32)
    monkeypatch.setattr(words, "_MEASURED", 16)
    monkeypatch.setattr(words, "ProcessPoolExecutor", _InThisProcess)


class _InThisProcess(Executor):
    """A pool that does at once what it is given."""

    def __init__(self, workers, context, begin, given):
        begin(*given)

    def submit(self, work, /, *given, **named):
        done = Future()
        done.set_result(work(*given, **named))
        return done


def test_a_font_draws_a_language_if_it_has_its_letters(found_fonts):
    assert found_fonts["en"]
    assert not [path for path, _ in found_fonts["zh"] if "DejaVu" in path]
    assert [path for path, _ in found_fonts["zh"] if "CJK" in path]
    with pytest.raises(ConfigError, match="no fonts"):
        fonts.fonts_by_language({"en": (["\U000f1234\U000f1235"], [1.0])}, [])


def test_latin_letters_do_not_count_for_a_language_of_another_script():
    counted = fonts._letters(["привет", "город", "ok"])
    assert set(counted) == set("приветогд")
    assert set(fonts._letters(["straße"])) == set("straße")


def test_drawing_is_the_same_for_the_same_seed(writer):
    one, two, other = writer.draw(5), writer.draw(5), writer.draw(6)
    assert np.array_equal(one.pixels, two.pixels)
    assert one.letters == two.letters
    assert not np.array_equal(one.pixels, other.pixels)
    assert one.pixels.shape == (HEIGHT, WIDTH)


def test_letters_stand_where_there_is_ink(writer):
    """On most canvases the pixels around a letter differ; a letter's text is one that was drawn."""
    inked = Counter()
    for seed in range(40):
        canvas = writer.draw(seed)
        for letter in canvas.letters:
            inside = canvas.pixels[
                max(0, int(letter.centre) - 4) : int(letter.centre) + 5,
                max(0, round(letter.left)) : max(0, round(letter.right)) + 1,
            ]
            if inside.size and letter.left > 0:
                inked[int(np.ptp(inside)) > 25] += 1
    assert inked.total() > 400
    assert inked[True] > 0.97 * inked.total()


def test_only_sizes_that_are_to_be_read_have_letters(writer, monkeypatch):
    for size, read in ((15.0, True), (30.0, False), (6.0, False)):
        monkeypatch.setattr(Writer.draw.__globals__["_size"], "__code__", _const(size))
        canvases = [writer.draw(seed) for seed in range(5)]
        assert any(canvas.text for canvas in canvases)
        assert any(canvas.letters for canvas in canvases) == read


def _const(size):
    """Return the code of a function that returns a size for any draws."""
    scope = {}
    exec(f"def _size(draws):\n    return {size}", scope)  # noqa: S102 - two lines of this test
    return scope["_size"].__code__


def test_cells_of_letters_are_to_be_found_and_near_ones_do_not_matter():
    letter = Letter(("<", "a", ">"), 20.0, 28.0, 36.0)
    cut = Letter(("<", "b", ">"), -3.0, 5.0, 36.0)
    canvas = Canvas(
        np.full((HEIGHT, WIDTH), 255, np.uint8), [letter, cut], [(20.0, 26.0, 28.0, 45.0)]
    )
    batch = make_batch([canvas], np.random.default_rng(0), 10, varied=False)
    shown = batch.shown[0].numpy()
    assert shown.shape == (ROWS, COLUMNS)
    assert (shown[4, 10:14] == 1).all()
    assert (shown[3, 10:15] == -1).all()
    assert (shown[5, 10:15] == -1).all()
    assert (shown == 1).sum() == 4
    assert batch.units == [("<", "a", ">")]
    page, row, column = (int(each[0]) for each in batch.cells)
    assert (page, row) == (0, 4)
    assert 10 <= column < 14
    assert batch.pixels.min() == 1


def test_at_most_so_many_letters_of_a_canvas_are_read(writer):
    canvas = next(c for c in map(writer.draw, range(99)) if len(c.letters) > 20)
    batch = make_batch([canvas, canvas], np.random.default_rng(0), 8, varied=True)
    assert len(batch.units) == 16
    assert batch.pixels.min() >= 0
    assert batch.pixels.max() <= 1


def test_killed_and_run_again_it_ends_with_the_same_weights(quick, tmp_path, monkeypatch):
    settings = TrainWordsSettings(**QUICK)
    whole = words.train_words(tmp_path / "whole.safetensors", settings)
    taken = words.Training._take_step

    def stop(self, canvases):
        if self.step == 5:
            raise KeyboardInterrupt
        return taken(self, canvases)

    broken = tmp_path / "broken.safetensors"
    monkeypatch.setattr(words.Training, "_take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        words.train_words(broken, settings)
    assert not broken.exists()
    monkeypatch.setattr(words.Training, "_take_step", taken)
    again = words.train_words(broken, settings)
    assert again.figures == whole.figures
    assert broken.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not checkpoint_path(broken).exists()


def test_the_detector_stays_as_it_was_and_says_how_it_learned_to_read(quick, tmp_path):
    weights = tmp_path / "new.safetensors"
    words.train_words(weights, TrainWordsSettings(**QUICK))
    before, _ = load_detector(find_weights(None), torch.device("cpu"))
    after, card = load_detector(weights, torch.device("cpu"))
    assert card.model.words
    assert card.words["steps"] == 6
    assert card.words["measured"]["cosine"] < 1
    assert set(card.words["words"]) == {"babel", "django", "faker", "jieba", "sphinx"}
    kept = before.state_dict()
    for name, value in after.state_dict().items():
        if not name.startswith("patches."):
            assert torch.equal(value, kept[name]), name
    page = torch.randint(0, 256, (1, 3, 640, 360), dtype=torch.uint8)
    boxes = [torch.tensor([[10.0, 10.0, 200.0, 90.0]])]
    exported = after.export(torch.randn(1, DIMENSION), page, boxes)
    assert exported.shape == (1, DIMENSION)


def test_complete_weights_stay_and_other_settings_are_refused(quick, tmp_path):
    weights = tmp_path / "new.safetensors"
    words.train_words(weights, TrainWordsSettings(**QUICK))
    content = weights.read_bytes()
    assert words.train_words(weights, TrainWordsSettings(**QUICK)).steps == 6
    assert weights.read_bytes() == content
    with pytest.raises(ConfigError, match="trained with other seed"):
        words.train_words(weights, TrainWordsSettings(**QUICK, seed=1))
    words.train_words(weights, TrainWordsSettings(**QUICK, seed=1), force=True)
    assert weights.read_bytes() != content


def test_a_torn_or_foreign_checkpoint_is_one_line(quick, tmp_path):
    weights = tmp_path / "new.safetensors"
    path = checkpoint_path(weights)
    path.write_bytes(b"torn")
    with pytest.raises(FormatError, match="not a readable checkpoint"):
        words.train_words(weights, TrainWordsSettings(**QUICK))
    torch.save({"identity": "{}"}, path)
    with pytest.raises(ConfigError, match="begun with other settings"):
        words.train_words(weights, TrainWordsSettings(**QUICK))


def test_other_names_and_sizes_are_refused(quick, tmp_path):
    with pytest.raises(ConfigError, match=r"named \*\.safetensors"):
        words.train_words(tmp_path / "new.pt", TrainWordsSettings(**QUICK))
    model, card = load_detector(find_weights(None), torch.device("cpu"))
    plain = card.model.model_copy(update={"patches": False, "words": False})
    start = tmp_path / "plain.safetensors"
    write_weights(start, dict(model.state_dict()), card.model_copy(update={"model": plain}))
    with pytest.raises(ConfigError, match="has no word reader"):
        words.train_words(tmp_path / "new.safetensors", TrainWordsSettings(**QUICK, from_=start))


def test_where_letters_are_is_learned_in_thirty_steps(found_fonts, tmp_path, writer):
    settings = TrainWordsSettings(steps=200, threads=1)
    training = words.Training(tmp_path / "w.safetensors", settings, LEXICON, found_fonts)
    canvases = [writer.draw(seed) for seed in range(64)]
    told = [training._take_step(canvases[4 * (step % 16) :][:4]) for step in range(30)]
    first, last = (np.mean([each["where"] for each in part]) for part in (told[:5], told[-5:]))
    assert last < 0.5 * first
    assert told[-1]["which"] < told[0]["which"]


def test_the_losses_are_those_of_their_formulas(found_fonts, tmp_path, writer):
    settings = TrainWordsSettings(threads=1)
    training = words.Training(tmp_path / "w.safetensors", settings, LEXICON, found_fonts)
    drawn = next(
        canvas
        for canvas in map(writer.draw, range(99))
        if len(canvas.letters) > 9 and not is_unspaced(canvas.letters[0].unit[1])
    )
    batch = make_batch([drawn], np.random.default_rng(0), 5, varied=False)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch.shown.shape, generator=generator)
    said = torch.nn.functional.normalize(torch.randn(5, 256, generator=generator), dim=1)
    found = training._losses(batch, logits, said)
    scale = float(training.scale.detach().exp())
    units = sorted(set(batch.units))
    goals = np.stack([unit_vector(unit) for unit in units])
    among, which, cosine = [], [], []
    for row, unit in zip(said.numpy(), batch.units, strict=True):
        scores = scale * goals @ row
        among.append(np.log(np.exp(scores).sum()) - scores[units.index(unit)])
        if unit[1] in training.letters:  # all but rare characters, which no word has
            scores = scale * training.table.numpy() @ row
            which.append(np.log(np.exp(scores).sum()) - scores[training.letters[unit[1]]])
        cosine.append(1 - row @ unit_vector(unit))
    cells = [
        np.log1p(np.exp(-logit if truth else logit))
        for logit, truth in zip(
            logits.flatten().tolist(), batch.shown.flatten().tolist(), strict=True
        )
        if truth >= 0
    ]
    expected = {"where": 2 * np.mean(cells), "among": np.mean(among), "which": np.mean(which),
                "cosine": 2 * np.mean(cosine)}  # fmt: skip
    for name, value in expected.items():
        assert float(found[name].detach()) == pytest.approx(value, rel=1e-4), name


def test_a_training_that_starts_from_weights_that_read_goes_on_reading(tmp_path):
    reads = TrainDetectorSettings(from_=find_weights(None))
    assert resolve_recipe(reads, 10, 10).model.words == read_card(find_weights(None)).model.words
    assert not resolve_recipe(TrainDetectorSettings(), 10, 10).model.words


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(lexicon, "find_spec", lambda name: None if name == "faker" else name)
    with pytest.raises(ConfigError, match=r"faker.*noise-of-web\[words\]"):
        lexicon.read_lexicon()


@pytest.mark.slow
def test_words_of_two_hundred_languages_come_from_the_packages():
    found = lexicon.read_lexicon()
    assert len(found) > 200
    for language, word in (
        ("de", "Deutschland"),
        ("zh", "网络"),
        ("ja", "日本語"),
        ("ru", "Россия"),
    ):
        assert word in found[language][0]
    assert all(list(spans(word)) for word in found["en"][0][:500])


@pytest.mark.slow
def test_the_command_is_killed_and_goes_on(tmp_path):
    weights = tmp_path / "new.safetensors"
    command = [sys.executable, "-c", "from now_builder.cli import main; main()", "train-words",
               weights, "--steps", "8",
               "--checkpoint-every", "2", "--threads", "1"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    checkpoint = checkpoint_path(weights)
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not weights.exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "goes on from step" in done.stderr
    assert card_path(weights).exists()
    assert not checkpoint.exists()
