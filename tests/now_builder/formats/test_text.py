"""Cleaning, what is odd about a caption, and what mending leaves alone."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.formats.text import clean, is_placeholder, mend, oddities

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


PLACEHOLDERS = r"""
...  …  -  — —  ???  |||  undefined  null  NULL  None  true  False  NaN  N/A  (null)  "undefined"
undefined - undefined  [object Object]  [object Object] | Shop  null, null  Array
{{ page.description }}  {{description}}  {{{ description }}}  Buy {{ product.name }} here
{{ page.des
{% block description %}  {%- if page.description -%}  <%= description %>  <%- meta.description %>
<?php echo $description ?>  <?= $description ?>  ${description}  Welcome to ${city}  #{description}
%%excerpt%%  %%title%% %%page%% %%sep%%  %title% %sep% %sitename%  #post_title #separator_sa
%s  %1$s  %s - %s  %(name)s of the day  {0}  {description}  {$description}  %DESCRIPTION%
$description  $description$  @description@  [description]  <description>  __MSG_appDesc__
[vc_row][vc_column width="1/2"]Our bread[/vc_column][/vc_row]  [vc_row css=".vc_custom
[et_pb_section fb_built="1"]Bread  [contact-form-7 id="12"]  [b]Bold[/b] bread  [our_products]
[site:name]  [node:field-summary]  [[+description]]  [[*introtext]]
description  meta.description  home.meta.description  META_DESCRIPTION  og:description
Your description here  Description goes here  this is meta description  SEO description
Lorem ipsum dolor sit amet, consectetur adipiscing elit
\u0420\u043e\u0437\u044b  caf\u00e9 and more  \u{1F600} hello  %u0420%u043E  \xd0\xa0
u0420u043eu0437u044b  %D0%A0%D0%BE
(adsbygoogle = window.adsbygoogle || []).push({});  <ins class="adsbygoogle"></ins>
<script async src="https://ads.test/a.js"></script>
google_ad_client = "ca-pub-1"; google_ad_slot = "2";
var cpro_id = "u1234567";  OA_show(12);  var _hmt = _hmt || [];  (function(){var a=1;})();
jQuery(function($){ $("a").attr("target", "_blank"); });  $(document).ready(function(){ a(); });
.stk-a1b2 { background-color: #fff !important; } Bread  @media (max-width: 9px) { .a { top: 0 } }
<!-- DESCRIPTION -->
googletag.cmd.push(function() { });  <!-- wp:paragraph --> Bread
/*! elementor - v3 */ .a{padding:0}
"""

SENTENCES = r"""
50 % off all {spring} flowers, 100 % fresh
100% cotton, 50%–70% off, das ist 100%ig
Sets {1, 2, 3} and {a, b} in mathematics, f(x) is a function (real); g(x) is another;
Use printf with %s and %d in C; printf() formats output; see also scanf()
CSS { color: red; } explained, and body { margin: 0 }
[Updated] Our bread  [New] Rolls [2024]
Undefined behaviour in C explained  Null Island is a place  None of the above: a blog
True stories from the sea  Description of the town of Bath  Arrays and lists
Prices from $5 to $10, or {$5}  How $HOME works  10 % Rabatt %  %20 off
Learn about the a[i] index and arr[my_index] access
★★★★★  👍  2024  0  A  中  文{字}列 100％
The <script> HTML element is used to embed executable code
How to write <!-- comments --> in HTML
How to add adsbygoogle.js to a page
Apples (red); pears (green); plums (blue);
.NET apps and {braces}  #bread and {butter} from 9:00; open daily
C:\users\name and \usr
Lorem Ipsum is simply dummy text of the printing industry
Read https://bread.test/%E6%96%87%E7%AB%A0 first
Node.js  U.S.A.  www.example.com  @handle  #bread  C#  x = 5
Open 9:00-17:00; closed on Sunday; a == b; c == d;
"""


def _phrases(text: str) -> list[str]:
    return [phrase for phrase in re.split(r"\s{2,}|\n", text) if phrase]


@pytest.mark.parametrize("text", _phrases(PLACEHOLDERS))
def test_placeholders_are_told(text: str) -> None:
    assert "placeholder" in oddities(clean(text))


@pytest.mark.parametrize("text", _phrases(SENTENCES))
def test_sentences_that_resemble_placeholders_are_none(text: str) -> None:
    assert not is_placeholder(clean(text))


@pytest.mark.parametrize("text", ["\u200b", "\u2800", "\u3164", "\ufe0f", "\u200c\u200d", "\ufffc"])
def test_a_text_of_which_nothing_can_be_seen_is_empty(text: str) -> None:
    assert clean(text) == clean(f" {text}\u00a0") == ""
    assert clean(f"a{text}b") == f"a{text}b"


@given(st.text() | st.lists(st.sampled_from([*MENDED, *LEFT, "&", "<", ";", "amp"])).map("".join))
def test_a_mended_caption_is_clean_and_one_without_oddities_stays(text: str) -> None:
    text = clean(text)
    mended = mend(text)
    assert clean(mended) == mended
    assert unicodedata.is_normalized("NFC", mended)
    assert not oddities(mended) & {"zero_width", "bidi"} or "&" in text
    if not oddities(text):
        assert mended == text
