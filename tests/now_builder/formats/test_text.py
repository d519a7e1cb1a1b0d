"""Cleaning, what is odd about a caption, and what mending leaves alone."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.formats.text import clean, mend, oddities

MENDED = {
    "&lt;b&gt;bold&lt;/b&gt; text": ({"double_escaped"}, "bold text"),
    "fish &amp; chips": ({"double_escaped"}, "fish & chips"),
    "it&#39;s &#x4e2d;": ({"double_escaped"}, "it's 中"),
    "&amp;amp;": ({"double_escaped"}, "&amp;"),  # once more, not for ever
    "a&nbsp;b": ({"double_escaped"}, "a b"),
    "<p class='x'>one</p><br/>two": ({"tags"}, "one two"),
    '<a href="/x" target=_blank>link</a>': ({"tags"}, "link"),
    "soft\u200bzero\ufeff \u2060x long\u00adword": ({"zero_width"}, "softzero x longword"),
    "\u202bעברית\u202c": ({"bidi"}, "עברית"),
    "e\u200b\u0301": ({"zero_width"}, "\u00e9"),
    "broken \ufffd": ({"replacement"}, "broken \ufffd"),
    "&#1;x&#128;": ({"double_escaped"}, "x€"),
    "<b></b>": ({"tags"}, ""),
    "<B>one</B>, <SPAN>t</SPAN>wo<BR>three": ({"tags"}, "one, two three"),
}
LEFT = [
    "AT&T, R&D; Q&A",
    "?a=1&copy=2&reg=3",
    "&nonsense; &x;",
    "5 < 6 > 4 <3 x<y>z",
    "List<String> and <T>",
    "می‌خواهم",  # a zero-width non-joiner is spelling here
    "👩‍👧 ⌚️",
    "＜b＞",
    "",
]


@pytest.mark.parametrize("text", MENDED)
def test_what_is_odd_is_told_and_mended(text: str) -> None:
    odd, mended = MENDED[text]
    assert (oddities(text), mend(text)) == (odd, mended)


@pytest.mark.parametrize("text", LEFT)
def test_what_is_as_it_should_be_is_left_alone(text: str) -> None:
    assert (oddities(text), mend(text)) == (frozenset(), text)


@given(st.text() | st.lists(st.sampled_from([*MENDED, *LEFT, "&", "<", ";", "amp"])).map("".join))
def test_a_mended_caption_is_clean_and_one_without_oddities_stays(text: str) -> None:
    text = clean(text)
    mended = mend(text)
    assert clean(mended) == mended
    assert unicodedata.is_normalized("NFC", mended)
    assert not oddities(mended) & {"zero_width", "bidi"} or "&" in text
    if not oddities(text):
        assert mended == text
