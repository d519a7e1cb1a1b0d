"""Cleaning, and the oddities of a caption."""

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from now_builder.formats.text import caption_oddities, clean, decode_entities, is_placeholder

ODD = {
    "&lt;b&gt;bold&lt;/b&gt; text": {"double_escaped"},
    "it&#39;s &#x4e2d;": {"double_escaped"},
    "&amp;amp;": {"double_escaped"},
    "<p class='x'>one</p><br/>two": {"tags"},
    '<a href="/x" target=_blank>link</a>': {"tags"},
    "soft\u200bzero\ufeff \u2060x long\u00adword": {"zero_width"},
    "\u202bעברית\u202c": {"bidi"},
    "broken \ufffd": {"replacement"},
    "<B>one</B>, <SPAN>t</SPAN>wo<BR>three": {"tags"},
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


def test_oddities_are_reported_and_other_texts_have_none() -> None:
    assert {text: caption_oddities(text) for text in ODD} == ODD
    assert [text for text in LEFT if caption_oddities(text)] == []
    assert decode_entities("fish &amp; chips ?a=1&copy=2 &amp;amp; &#1;x&#128;") == (
        "fish & chips ?a=1&copy=2 &amp; x€"
    )


PLACEHOLDERS = r"""
...  …  -  — —  ???  |||  undefined  null  NULL  None  true  False  NaN  N/A  (null)  "undefined"
undefined - undefined  [object Object]  [object Object] | Shop  null, null  Array
{% block description %}  {%- if page.description -%}  <%= description %>  <%- meta.description %>
<?php echo $description ?>  <?= $description ?>  ${description}  Welcome to ${city}  #{description}
%%excerpt%%  %%title%% %%page%% %%sep%%  %title% %sep% %sitename%  #post_title #separator_sa
[et_pb_section fb_built="1"]Bread  [contact-form-7 id="12"]  [/b] Bold bread  [our_products]
[site:name]  [node:field-summary]  [[+description]]  [[*introtext]]
description  meta.description  home.meta.description  META_DESCRIPTION  og:description
Your description here  Description goes here  this is meta description  SEO description
Lorem ipsum dolor sit amet, consectetur adipiscing elit
\u0420\u043e\u0437\u044b  caf\u00e9  \u{1F600} hello  %u0420%u043E  \xd0\xa0
u0420u043eu0437u044b  %D0%A0%D0%BE
(adsbygoogle = window.adsbygoogle || []).push({});  <ins class="adsbygoogle"></ins>
jQuery(function($){ $("a").attr("target", "_blank"); });  $(document).ready(function(){ a(); });
<!-- DESCRIPTION -->
<section class=  Read <a title='x' href=
TODO  ToDo  TBD  TODO: describe the new checkout  Test  lorem ipsum  Placeholder text
Just another WordPress site  Just another WordPress.com weblog  Ann | Just another WordPress site
Welcome to Hexo! This is your very first post. Check documentation for more info.
Write an awesome description for your new site here. You can edit this line in _config.yml.
Web site created using create-react-app  A new Flutter project.  My classy Nuxt.js project
暂无描述  暫無簡介  网站描述  请输入描述  这里是网站描述。
.a{color:red} .b ul li a b i{margin:0 auto 1px 2px} Bread
window.dataLayer = window.dataLayer || []; function gtag(){dataLayer.push(arguments);} gtag('a');
"""

SENTENCES = r"""
50 % off all {spring} flowers, 100 % fresh
100% cotton, 50%–70% off, das ist 100%ig
Use printf with %s and %d in C; printf() formats output; see also scanf()
CSS { color: red; } explained, and body { margin: 0 }
Undefined behaviour in C explained  Null Island is a place  None of the above: a blog
Prices from $5 to $10, or {$5}  How $HOME works  10 % Rabatt %  %20 off
★★★★★  👍  2024  0  A  中  文{字}列 100％
The <script> HTML element is used to embed executable code
How to write <!-- comments --> in HTML
C:\users\name and \usr
Read https://bread.test/%E6%96%87%E7%AB%A0 first
Node.js  U.S.A.  www.example.com  @handle  #bread  C#  x = 5
How Vue fills in {{ message }} in a template  What {{ means in Vue  如何使用 {{ message }} 显示文本
What does <?php do and why the closing tag is left out  Learn when to use <% and <%= in ERB
Write {% raw %} around a Liquid template  caf\u00e9 and more is JSON  The %s of printf and %(name)s
.a{color:red} Fresh bread every day from our oven.  .a{top:0} 每天新鲜的面包 .b{top:0}
(adsbygoogle = window.adsbygoogle || []).push({}); Fresh bread every day, and it's good
What window.dataLayer.push({'a': 1}) does and when to call it  Why </script> must be escaped in JS
Fresh bread every day <a href=
A todo list for teams  Testing bread  TODO comments in code: how to find them
A description of our bread  This page is about bread  Nuxt.js project ideas for beginners
"""


def _phrases(text: str) -> list[str]:
    return [phrase for phrase in re.split(r"\s{2,}|\n", text) if phrase]


def test_placeholders_differ_from_similar_sentences() -> None:
    missed = [
        text
        for text in _phrases(PLACEHOLDERS)
        if "placeholder" not in caption_oddities(clean(text))
    ]
    wrong = [text for text in _phrases(SENTENCES) if is_placeholder(clean(text))]
    assert (missed, wrong) == ([], [])


def test_invisible_texts_become_empty() -> None:
    for text in ("\u200b", "\u2800", "\u3164", "\ufe0f", "\u200c\u200d", "\ufffc"):
        assert clean(text) == clean(f" {text}\u00a0") == ""
        assert clean(f"a{text}b") == f"a{text}b"


@given(st.text() | st.lists(st.sampled_from([*ODD, *LEFT, "&", "<", ";", "amp"])).map("".join))
def test_a_caption_is_clean_once_and_for_all(text: str) -> None:
    text = clean(text)
    assert clean(text) == text
    assert unicodedata.is_normalized("NFC", text)
