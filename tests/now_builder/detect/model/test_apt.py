"""The model: tuned prompts by hand, 36 rows whatever the page."""

import numpy as np
import pytest
import torch
from torch import nn

from now_builder.detect.base import Page, TextBox
from now_builder.detect.model.apt import TINY, AptDetector, PromptTuner
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.formats.features import SOURCES
from tests.now_builder.detect.conftest import check_rows

SMALL = TINY.model_copy(update={"input_size": (180, 320)})


@pytest.fixture(scope="module")
def extractor():
    """A model with arbitrary weights: what holds for it holds for any weights."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = HashedNgrams(0)
    config = SMALL.model_copy(update={"temperature": 0.2})  # so that no probability saturates
    model = AptDetector(config, encoder.encode([f"class {i}" for i in range(18)]))
    torch.nn.init.normal_(model.tuner.expand.weight, std=0.05)
    for head in (*model.rpn.objectness, *model.rpn.deltas):
        torch.nn.init.normal_(head.weight, std=0.5)
    return AptExtractor(model, encoder, {"detector": "apt-style"})


def noise(pages, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (pages, 3, 320, 180), dtype=torch.uint8, generator=generator)


def strings(count):
    return [
        TextBox(f"string {i}", (x, y, x + 30, y + 20))
        for i, x, y in ((i, i % 20 * 36.0, i % 50 * 25.0) for i in range(count))
    ]  # fmt: skip


def test_tuning_begins_as_the_untuned_prompts_and_equals_tuning_each_by_itself():
    torch.manual_seed(0)
    visual, text, prompts = (nn.functional.normalize(torch.randn(n, 24), dim=1) for n in (5, 5, 3))
    tuner = PromptTuner(24)
    torch.testing.assert_close(tuner(visual, text, prompts), visual @ prompts.T)
    torch.nn.init.normal_(tuner.expand.weight)
    out = tuner.expand(nn.functional.relu(tuner.reduce(torch.cat([visual, text], dim=1))))
    tuned = prompts[None] + out[:, None]
    expected = nn.functional.cosine_similarity(visual[:, None], tuned, dim=2)
    torch.testing.assert_close(tuner(visual, text, prompts), expected)


def test_the_background_is_a_zero_logit(extractor):
    logits = extractor.model.classify(torch.randn(4, 768), torch.zeros(4, 768), torch.rand(4, 4))
    assert logits.shape == (4, 19)
    assert logits[:, -1].tolist() == [0.0] * 4


def check_batch(batch, pages):
    check_rows(batch, pages)
    assert ((batch.scores >= 0) & (batch.scores <= 1)).all()
    own = batch.source == SOURCES.index("detector")
    assert (own.sum(axis=1) == batch.n_regions).all()
    for scores, mine in zip(batch.scores, own, strict=True):
        assert (np.diff(scores[mine]) <= 0).all()
        assert mine[: mine.sum()].all()


def test_a_page_has_thirty_six_rows_whatever_its_text_and_pixels(extractor):
    texts = [(), strings(3), strings(500), (), ()]
    blank = torch.zeros(1, 3, 320, 180, dtype=torch.uint8)
    pages = [Page(key, text) for key, text in zip("abcde", texts, strict=True)]
    batch = extractor.extract(pages, torch.cat([noise(3), blank, blank + 255]))
    check_batch(batch, 5)
    assert batch.keys == list("abcde")


def test_where_proposals_run_short_windows_of_the_grid_fill_up(extractor):
    model = AptDetector(SMALL, extractor.model.prompts)
    batch = AptExtractor(model, HashedNgrams(0), {}, proposals=5).extract([Page("a")], noise(1))
    check_batch(batch, 1)
    grid = batch.source[0] == SOURCES.index("grid")
    assert grid.sum() >= 31
    assert (batch.classes[0][grid] == -1).all()
    assert (batch.scores[0][grid] == 0).all()
    assert len({tuple(row) for row in batch.boxes[0][grid]}) == grid.sum()


def test_extraction_is_deterministic_and_pages_do_not_leak_into_each_other(extractor):
    both = extractor.extract([Page("a", strings(3)), Page("b")], noise(2))
    again = extractor.extract([Page("a", strings(3)), Page("b")], noise(2))
    assert np.array_equal(both.regions, again.regions)
    alone = extractor.extract([Page("a", strings(3))], noise(2)[:1])
    np.testing.assert_allclose(alone.regions[0], both.regions[0], atol=1e-3)
