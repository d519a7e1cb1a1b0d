"""The word reader: contrast, the cells that it reads, the letters that the shipped one names."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional

from now_builder.detect.model import word_reader
from now_builder.detect.model.weights import find_weights, load_detector, to_inference
from now_builder.detect.model.word_reader import (
    WordReader,
    letters,
    local_contrast,
    readable_letters,
    surest,
)
from now_builder.formats.word_vectors import letter_vector, text_sketch

PAGE = (360, 640)
WHOLE = torch.tensor([[0.0, 0.0, 360.0, 640.0]])


@pytest.fixture(scope="module")
def reader():
    torch.manual_seed(0)
    return WordReader().eval()


@pytest.fixture(scope="module")
def shipped():
    model, card = load_detector(find_weights(None), torch.device("cpu"))
    assert card.model.words
    return to_inference(model, "fp32").patches.words


def write(*lines, size=16, ink=0, back=255):
    """Draw lines of text at twice the size, then shrink them, as a phone's screenshot is."""
    image = Image.new("RGB", (720, 1280), (back,) * 3)
    pen = ImageDraw.Draw(image)
    font = ImageFont.truetype("DejaVuSans.ttf", 2 * size)
    for number, line in enumerate(lines):
        pen.text((40, 80 + number * 6 * size), line, font=font, fill=(ink,) * 3)
    return torch.from_numpy(np.array(image.reduce(2)).transpose(2, 0, 1))[None]


def test_contrast_is_the_distance_from_the_mean_in_deviations():
    page = torch.rand(1, 1, 40, 50, generator=torch.Generator().manual_seed(0))
    padded = functional.pad(page, (12, 12, 12, 12), mode="replicate")
    slow = torch.zeros(40, 50)
    centred = page - functional.avg_pool2d(padded, 25, 1)
    squares = functional.pad(centred.square(), (12, 12, 12, 12), mode="replicate")[0, 0]
    for row in range(40):
        for column in range(50):
            window = squares[row : row + 25, column : column + 25]
            slow[row, column] = centred[0, 0, row, column] / (window.mean().sqrt() + 0.03)
    assert torch.allclose(local_contrast(page)[0, 0], slow, atol=1e-4)


def test_a_letter_is_read_in_its_surest_row_and_at_its_surest_scale():
    """Against a loop over cells, of pages whose maps are not exactly twice as large."""
    generator = torch.Generator().manual_seed(0)
    for small in ((4, 5), (5, 6), (5, 5)):
        both = [torch.randn(2, *size, generator=generator) for size in ((9, 11), small)]
        for own, other, shown in zip(both, both[::-1], surest(both), strict=True):
            rows, columns = own.shape[1:]
            down, across = other.shape[1] / rows, other.shape[2] / columns
            for page, row, column in torch.cartesian_prod(*map(torch.arange, own.shape)).tolist():
                value = float(own[page, row, column])
                near = other[
                    page,
                    int(row * down) : math.ceil((row + 1) * down),
                    int(column * across) : math.ceil((column + 1) * across),
                ]
                rivals = [
                    float(own[page, each, column])
                    for each in (row - 1, row + 1)
                    if 0 <= each < rows
                ] + [float(near.max())]
                assert bool(shown[page, row, column]) == (value > 0 and value >= max(rivals))


def test_logits_of_every_third_cell_are_those_of_all(reader):
    page = torch.rand(2, 1, 40, 52, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        (maps, logits), (same, some) = reader.maps(page), reader.maps(page, 3)
    assert torch.equal(maps, same)
    assert torch.allclose(some, logits[:, :, ::3], atol=1e-6)


def test_a_letter_is_named_by_the_nearest_vector_of_all(reader, monkeypatch):
    """Against one product with all letters, of alphabets and of others, and of nearly none."""
    monkeypatch.setattr(word_reader, "_NAMED", 16)
    known, alphabets = readable_letters()
    assert len({*known}) == len(known)
    assert known[:alphabets].isalnum()
    generator = np.random.default_rng(0)
    shown = ["a", "9", "ж", "ש", "ü", "ひ", "网", "語", "한", "灣"] * 5
    noise = 0.05 * generator.normal(size=(50, 256))
    vectors = np.stack([*map(letter_vector, shown)]) + noise
    vectors[:3] = generator.normal(size=(3, 256))
    vectors = functional.normalize(torch.from_numpy(vectors).float(), dim=1)
    named = reader.name_letters(vectors)
    table = torch.from_numpy(np.stack([*map(letter_vector, known)]))
    cosine, nearest = (vectors @ table.T).max(1)
    assert named.tolist() == torch.where(cosine < 0.3, -1, nearest).tolist()
    assert [known[number] for number in named[3:]] == shown[3:]
    doubled = reader.name_letters(vectors.repeat_interleave(2, dim=0))
    assert doubled.tolist() == named.repeat(2).tolist()
    assert len(reader.name_letters(vectors[:0])) == 0


def test_a_page_is_read_by_cell_and_its_regions_get_rows_of_its_sketch(reader, monkeypatch):
    """Against a loop over the cells, at both scales."""
    monkeypatch.setattr(word_reader, "_CHUNK", 128)
    monkeypatch.setattr(word_reader, "_MULTIPLE", 16)
    monkeypatch.setattr(word_reader, "_LEAST", 0.1)
    monkeypatch.setattr(word_reader, "_SAME", 2.0)
    generator = torch.Generator().manual_seed(1)
    page = torch.randint(0, 256, (1, 3, 320, 180), dtype=torch.uint8, generator=generator)
    boxes = torch.tensor([[0.0, 0.0, 180.0, 320.0]] * 40)
    known, text = readable_letters()[0], ""
    with torch.inference_mode():
        both = torch.cat([page.flip(3), page])
        rows = reader(both, [boxes[:1], boxes])[1:]
        grey = page.float().mean(1, keepdim=True) / 255
        seen = [reader.maps(functional.avg_pool2d(grey, scale)) for scale in (1, 2)]
        chosen = surest([logits[:, :, ::3] for _, logits in seen])
        for (maps, _), shown in zip(seen, chosen, strict=True):
            for row, column in torch.stack(letters(shown[0]), 1).tolist():
                place = [torch.tensor([each]) for each in (0, row, column)]
                number = int(reader.name_letters(reader.read(maps, tuple(place)))[0])
                text += known[number] if number >= 0 else ""
        assert len(text) > 20
        right_to_left = word_reader._RIGHT_TO_LEFT.sub(lambda run: run[0][::-1], text)
        assert reader.read_texts(both)[1] == right_to_left
    sketch = text_sketch(right_to_left).reshape(36, 256)
    np.testing.assert_array_equal(rows[:36], sketch)
    np.testing.assert_array_equal(rows[36:], sketch[:4])


def test_a_page_whose_sides_are_no_whole_number_of_cells_is_read(reader):
    page = torch.zeros(1, 3, 321, 203, dtype=torch.uint8)
    assert reader(page, [torch.tensor([[0.0, 0.0, 203.0, 321.0]])]).shape == (1, 256)


@pytest.mark.parametrize(("size", "ink", "back"), [(14, 0, 255), (24, 255, 30)], ids=str)
def test_the_shipped_reader_tells_lines_apart(shipped, size, ink, back):
    """Each line shares most with its own text, among texts of one language, at both scales."""
    lines = ["Bakery and coffee", "Hiking in Norway", "Guitar lessons", "Tax advisers",
             "Used cars for sale"]  # fmt: skip
    pages = [write(line, size=size, ink=ink, back=back) for line in lines]
    with torch.inference_mode():
        assert shipped.read_texts(torch.full_like(pages[0], back)) == [""]
        read = [shipped(page, [WHOLE.expand(36, 4)]).flatten() for page in pages]
    written = torch.from_numpy(np.stack([*map(text_sketch, lines)]))
    cosines = functional.normalize(torch.stack(read)) @ functional.normalize(written).T
    assert cosines.argmax(1).tolist() == [0, 1, 2, 3, 4]
    assert cosines.diagonal().min() > 0.25
