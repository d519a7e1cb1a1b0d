"""The word reader: contrast, which letters count for which region, what the shipped one reads."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional

from now_builder.detect.model import word_reader
from now_builder.detect.model.weights import find_weights, load_detector, to_inference
from now_builder.detect.model.word_reader import (
    ACROSS,
    DOWN,
    WordReader,
    letters,
    local_contrast,
    surest,
)
from now_builder.formats.word_vectors import count_units, unit_vector

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


def vector(text):
    total = sum(count * unit_vector(unit) for unit, count in count_units(text).items())
    return functional.normalize(torch.from_numpy(total), dim=0)


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


def test_a_region_sums_the_letters_whose_cells_it_contains(reader, monkeypatch):
    """Against a loop over the cells, at both scales; each counts for one and a half."""
    monkeypatch.setattr(word_reader, "_CHUNK", 128)
    monkeypatch.setattr(word_reader, "_FEWEST", 16)
    generator = torch.Generator().manual_seed(1)
    page = torch.randint(0, 256, (1, 3, 320, 180), dtype=torch.uint8, generator=generator)
    boxes = torch.tensor([[0.0, 0.0, 180.0, 320.0], [33.0, 50.0, 120.0, 90.0], [5.0, 5, 6, 6]])
    with torch.inference_mode():
        found = reader(torch.cat([page, page.flip(3)]), [boxes, boxes[:1]])[:3]
        slow = torch.zeros(3, 256)
        grey = page.float().mean(1, keepdim=True) / 255
        seen = [reader.maps(functional.avg_pool2d(grey, scale)) for scale in (1, 2)]
        chosen = surest([logits[:, :, ::3] for _, logits in seen])
        for scale, (maps, _), shown in zip((1, 2), seen, chosen, strict=True):
            for row, column in torch.stack(letters(shown[0]), 1).tolist():
                place = [torch.tensor([each]) for each in (0, row, column)]
                across, down = (column + 0.5) * ACROSS * scale, (row + 0.5) * DOWN * scale
                for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
                    if left <= across < right and top <= down < bottom:
                        slow[number] += 1.5 * reader.read(maps, tuple(place))[0]
    assert torch.allclose(found, slow, atol=1e-3)
    assert not found[2].any()


def test_a_page_whose_sides_are_no_whole_number_of_cells_is_read(reader):
    page = torch.zeros(1, 3, 321, 203, dtype=torch.uint8)
    assert reader(page, [torch.tensor([[0.0, 0.0, 203.0, 321.0]])]).shape == (1, 256)


@pytest.mark.parametrize(("size", "ink", "back"), [(14, 0, 255), (24, 255, 30)], ids=str)
def test_the_shipped_reader_tells_lines_apart(shipped, size, ink, back):
    """Each line is nearest to its own text, among texts of one language, at both scales."""
    lines = ["Bakery and coffee", "Hiking in Norway", "Guitar lessons", "Tax advisers",
             "Used cars for sale"]  # fmt: skip
    pages = [write(line, size=size, ink=ink, back=back) for line in lines]
    with torch.inference_mode():
        read = functional.normalize(torch.cat([shipped(page, [WHOLE]) for page in pages]), dim=1)
    cosines = read @ torch.stack([vector(line) for line in lines]).T
    assert cosines.argmax(1).tolist() == [0, 1, 2, 3, 4]
    assert cosines.diagonal().min() > 0.25
