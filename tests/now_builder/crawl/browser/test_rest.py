"""First screens that appear late, lazily or under an overlay are captured as a phone shows them."""

import io

import numpy as np
import pytest
from PIL import Image

from now_builder.formats.shard import Capture
from tests.now_builder.crawl.odd import COVERED, KEPT, LAZY, MOVING, OVERLAYS, Odd

pytestmark = [pytest.mark.browser]

BLUE = (0x20, 0x60, 0xC0)
MOST_RED = 200 * 200


def pixels(capture: Capture) -> np.ndarray:
    with Image.open(io.BytesIO(capture.screenshot)) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.int16)


def blue(odd: Odd, name: str) -> float:
    """Share of the blocks' colour."""
    return float((np.abs(pixels(odd.shots[f"/rest/{name}"]) - BLUE).max(axis=2) <= 12).mean())


def test_late_content_is_captured_and_a_page_at_rest_is_captured_at_once(
    odd: Odd,
) -> None:
    assert {name: blue(odd, name) for name in MOVING["revealed"] if blue(odd, name) <= 0.4} == {}
    for name in MOVING["at-rest"]:
        row = odd.rows[f"/rest/{name}"]
        assert row.load_state == "settled", name
        assert blue(odd, name) > 0.4, name
        assert (row.ink or 0) > 0.1, name


def test_a_page_that_moves_forever_or_stays_empty_is_partial(odd: Odd) -> None:
    states = {name: odd.rows[f"/rest/{name}"].load_state for name in MOVING["restless"]}
    assert states == dict.fromkeys(MOVING["restless"], "partial")
    row, header = odd.rows["/rest/nothing"], odd.rows["/rest/header-alone"]
    assert (row.ink, row.ink_middle, header.ink_middle) == (0.0, 0.0, 0.0)
    assert (header.ink or 0) > 0.0


def test_lazy_pictures_on_the_first_screen_are_captured(odd: Odd) -> None:
    for name in LAZY:
        shot = pixels(odd.shots[f"/lazy/{name}"])
        red = (shot[..., 0] > 150) & (shot[..., 1] < 80) & (shot[..., 2] < 80)
        assert red.sum() > 0.95 * MOST_RED, name
        assert odd.rows[f"/lazy/{name}"].load_state == "settled", name
    assert not odd.awkward.hits["/below.png"]  # a picture far below the screen stays lazy


def test_an_overlay_is_hidden_and_nothing_else_changes(odd: Odd) -> None:
    bare = odd.shots["keep.test/on/bare"].screenshot
    for path in COVERED:
        assert set(odd.rows[path].overlays) == set(OVERLAYS["hidden"][path[4:]][1]), path
        assert odd.shots[path].screenshot == bare, path
        assert not [element for element in odd.shots[path].elements if "ccept" in element.text]


def test_content_of_the_page_stays_and_by_default_overlays_stay_too(odd: Odd) -> None:
    bare = odd.shots["keep.test/on/bare"].screenshot
    for kept in KEPT:
        path = kept.removeprefix("keep.test")
        assert odd.rows[kept].overlays == [], path
        if path in COVERED:
            assert odd.shots[kept].screenshot != bare, path
        else:
            assert odd.rows[path].overlays == [], path
            assert odd.shots[path].screenshot == odd.shots[kept].screenshot, path
