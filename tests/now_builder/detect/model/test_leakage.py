"""What is stored for a box comes from its pixels: a page's text cannot change it."""

import inspect
import string
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from now_builder.detect.base import Page, TextBox
from now_builder.detect.model.apt import TINY, AptDetector
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.regions.extraction import AptExtractor

SOURCES = ("proposals", "dom")
DOM = [(x * 90.0, y * 80.0, x * 90.0 + 85, y * 80.0 + 70) for y in range(16) for x in range(5)]


def make(source):
    """A model with arbitrary weights, whose classification depends on text as much as can be."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = HashedNgrams(0)
    small = {"input_size": (180, 320), "temperature": 0.2}
    config = TINY.model_copy(update=small)
    model = AptDetector(config, encoder.encode([f"class {i}" for i in range(18)]))
    torch.nn.init.normal_(model.tuner.expand.weight, std=0.3)
    for head in (*model.rpn.objectness, *model.rpn.deltas):
        torch.nn.init.normal_(head.weight, std=0.5)
    return AptExtractor(model, encoder, {}, dom=source == "dom")


def noise():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, 320, 180), dtype=torch.uint8, generator=generator)


def run(extractor, *texts):
    pages = [Page(key, text, DOM) for key, text in zip("ab", texts, strict=True)]
    return extractor.extract(pages, noise())


@st.composite
def text_boxes(draw):
    left = draw(st.floats(0, 700, width=32))
    top = draw(st.floats(0, 1260, width=32))
    width, height = draw(st.floats(1, 720, width=32)), draw(st.floats(1, 1280, width=32))
    text = draw(st.text(string.ascii_letters + " 0价格按钮天气", max_size=12))
    source = draw(st.sampled_from(["dom", "ocr"]))
    return TextBox(text, (left, top, min(left + width, 720.0), min(top + height, 1280.0)), source)


@pytest.fixture(scope="module", params=SOURCES)
def bare(request):
    """An extractor, and what it stores of two pages without text: features by box."""
    extractor = make(request.param)
    batch = run(extractor, (), ())
    stored = [defaultdict(list) for _ in batch.keys]
    for page, boxes, regions in zip(stored, batch.boxes, batch.regions, strict=True):
        for box, region in zip(boxes, regions, strict=True):
            page[box.tobytes()].append(region)
    return extractor, batch, stored


@settings(
    max_examples=5,
    derandomize=True,
    phases=[Phase.generate],  # to shrink a failure would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(text_boxes(), max_size=25), st.lists(text_boxes(), max_size=25))
def test_whatever_the_text_a_box_keeps_its_features_bit_for_bit(bare, one, two):
    extractor, _, stored = bare
    wordy = run(extractor, one, two)
    shared = 0
    for page, boxes, regions in zip(stored, wordy.boxes, wordy.regions, strict=True):
        for box, region in zip(boxes, regions, strict=True):
            candidates = page.get(box.tobytes(), [])
            shared += bool(candidates)
            assert not candidates or any(np.array_equal(region, other) for other in candidates)
    assert shared >= 20


def test_text_does_change_scores_so_that_the_test_above_means_something(bare):
    extractor, batch, _ = bare
    everywhere = [TextBox("价格 Buy", (0.0, 0.0, 720.0, 1280.0))]
    assert not np.array_equal(run(extractor, everywhere, everywhere).scores, batch.scores)


class Traced:
    """An encoder whose vectors leave a trace in all that is computed from them."""

    name = "traced"

    def __init__(self):
        self.vectors = torch.randn(1, 768).requires_grad_()

    def encode(self, texts):
        return self.vectors.expand(len(texts), 768)


@pytest.mark.parametrize("source", SOURCES)
def test_no_path_of_the_computation_leads_from_text_to_what_is_exported(source, monkeypatch):
    """The graph itself, not its values: neither what goes into ``export`` nor what comes out."""
    extractor = make(source)
    for parameter in extractor.model.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    extractor.encoder = Traced()
    seen = {}

    class Done(Exception):  # noqa: N818 - no error
        pass

    def watch(name, then=None):
        whole = getattr(extractor.model, name)

        def watched(*values):
            answer = whole(*values)
            seen[name] = (values, answer)
            if then:
                raise then
            return answer

        monkeypatch.setattr(extractor.model, name, watched)

    watch("classify")
    watch("export", Done)
    with pytest.raises(Done):
        inspect.unwrap(AptExtractor.extract)(
            extractor,
            [Page(key, [TextBox("a", (0.0, 0.0, 720.0, 1280.0))], DOM) for key in "ab"],
            noise(),
        )
    assert seen["classify"][1].requires_grad  # the trace is there to be found
    (embedded, screenshots, regions), stored = seen["export"]
    assert not embedded.requires_grad
    assert not screenshots.requires_grad
    assert not any(boxes.requires_grad for boxes in regions)
    assert not stored.requires_grad
