"""Hostile and odd pages with the caption, source and encoding expected of each.

Judge of ``HTML`` and ``DECLARED`` is a browser's parser: Chromium is asked about every case that
does not say otherwise. ``OURS`` are decisions of this toolkit, on which browsers have no opinion:
fallbacks, cleaning, and guesses where nothing is declared.
"""

import codecs
import unicodedata
from dataclasses import dataclass

UTF8 = "text/html; charset=utf-8"
NO = "<meta name=description content=no>"
YES = "<meta name=description content=yes>"
Z = "中文网页"


@dataclass(frozen=True, slots=True)
class Case:
    """A page and what is to be found in it.

    Attributes:
        content: As served.
        caption: Expected.
        source: Expected; ``None`` where there is no caption.
        charset: Expected, ``None`` if it does not matter.
        header: Content type as served.
        browser: Whether Chromium is the judge.
    """

    content: bytes
    caption: str | None
    source: str | None = "name"
    charset: str | None = "utf-8"
    header: str | None = UTF8
    browser: bool = True


def named(content: str) -> str:
    return f'<meta name="description" content="{content}">'


# What a browser finds by name in a UTF-8 page: name -> (source of the page, caption).
HTML: dict[str, dict[str, tuple[str, str | None]]] = {
    "case and quoting": {
        "double quotes": ('<meta name="description" content="a b">', "a b"),
        "single quotes": ("<meta name='description' content='a b'>", "a b"),
        "no quotes": ("<meta name=description content=a>", "a"),
        "no quotes ends at a space": ("<meta name=description content=a b>", "a"),
        "no quotes holds a slash": ("<meta name=description content=a/b/>", "a/b/"),
        "no quotes holds quotes": ("<meta name=description content=a\"b'c>", "a\"b'c"),
        "no quotes holds an equals sign": ("<meta name=description content=a=b>", "a=b"),
        "upper case": ('<META NAME="DESCRIPTION" CONTENT="Up">', "Up"),
        "mixed case": ("<mEtA nAmE=dEsCrIpTiOn cOnTeNt=Mix>", "Mix"),
        "the Turkish dotless i is another name": (
            "<meta name=descrıption content=no><meta name=DESCRIPTION content=yes>", "yes"),
        "content before name": ("<meta content=first name=description>", "first"),
        "other attributes between": (
            '<meta data-x="1" name="description" lang=en content="mid" itemprop=x>', "mid"),
        "spaces round the equals sign": ('<meta name = "description" content = "sp">', "sp"),
        "new lines in the tag": ('<meta\nname="description"\r\ncontent="nl"\n>', "nl"),
        "tabs and form feeds in the tag": ('<meta\tname="description"\fcontent="tab">', "tab"),
        "no space between attributes": ('<meta name="description"content="close">', "close"),
        "spaces in the name": ('<meta name="  description " content="sp">', "sp"),
        "a new line in the name": ('<meta name="\ndescription\n" content="nl">', "nl"),
        "two words are another name": ('<meta name="description keywords" content=no>', None),
        "a longer name": ('<meta name="descriptions" content=no>', None),
        "a name in an entity": ('<meta name="&#100;escription" content="ent">', "ent"),
        "greater than in quotes": ('<meta name="description" content="a > b">', "a > b"),
        "less than in quotes": ('<meta name="description" content="a < b <c>">', "a < b <c>"),
        "quotes of the other kind": ("<meta name=description content='say \"hi\"'>", 'say "hi"'),
        "an apostrophe in double quotes": (named("it's"), "it's"),
    },
    "attributes": {
        "twice: the first wins": ("<meta name=description content=one content=two>", "one"),
        "the name twice": ("<meta name=description name=keywords content=x>", "x"),
        "the name twice, the other way": ("<meta name=keywords name=description content=x>", None),
        "twice in another case": ("<meta name=description CONTENT=one content=two>", "one"),
        "no content": ("<meta name=description>" + YES, "yes"),
        "content without a value": ("<meta name=description content>" + YES, "yes"),
        "content is empty": ('<meta name=description content="">' + YES, "yes"),
        "content is white space": ('<meta name=description content=" \t\n">' + YES, "yes"),
        "value instead of content": ("<meta name=description value=no>", None),
        "slashes between": ('<meta/name="description"/content="sl"/>', "sl"),
        "self-closing": ('<meta name="description" content="x"/>', "x"),
        "self-closing with a space": ('<meta name="description" content="x" />', "x"),
        "self-closing without quotes": ("<meta name=description content=x />", "x"),
        "an equals sign before the name": ('<meta ="x" name=description content=eq>', "eq"),
        "a quote among the attributes": ('<meta " name=description content=q>', "q"),
        "a less than among the attributes": ("<meta < name=description content=lt>", "lt"),
        "an attribute with a prefix": ("<meta x:name=description content=no>" + YES, "yes"),
        "a tag with a prefix": ("<x:meta name=description content=no>" + YES, "yes"),
        "a longer tag": ("<metadata name=description content=no>" + YES, "yes"),
        "an end tag": ("</meta name=description content=no>" + YES, "yes"),
        "a space before the tag name": ("< meta name=description content=no>" + YES, "yes"),
        "a thousand attributes": (
            "<meta " + " ".join(f"a{n}=b" for n in range(1000))
            + " name=description content=last>", "last"),
        "a long attribute": (f'<meta x="{"y" * 300_000}" name=description content=l>', "l"),
        "a long caption": (named("word " * 60_000), ("word " * 60_000).strip()),
    },
    "duplicates": {
        "the first wins": (named("one") + named("two"), "one"),
        "the first that is not empty wins": (named("") + named(" ") + named("three"), "three"),
        "the head before the body": (
            f"<head>{named('head')}</head><body>{named('body')}", "head"),
        "document order, not nesting": (f"<div><div>{named('in')}</div></div>{named('o')}", "in"),
        "many": ("".join(named(f"number {n}") for n in range(500)), "number 0"),
        "an empty one a thousand times": (named("") * 1000 + YES, "yes"),
    },
    "places": {
        "in the head": (f"<html><head>{YES}</head>", "yes"),
        "in the body": (f"<body><p>x{YES}</body>", "yes"),
        "after the body": (f"<body></body>{YES}", "yes"),
        "after the document": (f"<html><body></body></html>{YES}", "yes"),
        "before the document type": (f"{YES}<!DOCTYPE html><html>", "yes"),
        "before html": (f"<!DOCTYPE html>{YES}<html><body>", "yes"),
        "between head and body": (f"<head></head>{YES}<body>", "yes"),
        "in a paragraph": (f"<p>{YES}", "yes"),
        "in a link": (f"<a href=x>{YES}</a>", "yes"),
        "in a table": (f"<table><tr>{YES}</table>", "yes"),
        "in a cell": (f"<table><tr><td>{YES}</table>", "yes"),
        "in a form": (f"<form>{YES}</form>", "yes"),
        "in a button": (f"<button>{YES}</button>", "yes"),
        "in an unknown element": (f"<x-app>{YES}</x-app>", "yes"),
        "in a custom element in the head": (f"<head><x-app></x-app>{YES}</head>", "yes"),
        "in an object": (f"<object>{YES}</object>", "yes"),
        "in a video": (f"<video>{YES}</video>", "yes"),
        "in a canvas": (f"<canvas>{YES}</canvas>", "yes"),
        "in noscript": (f"<noscript>{NO}</noscript>{YES}", "yes"),
        "in noscript in the body": (f"<body><noscript>{NO}</noscript>{YES}", "yes"),
        "in noscript in capitals": (f"<NOSCRIPT>{NO}</NoScript>{YES}", "yes"),
        "noscript alone": (f"<noscript>{NO}</noscript>", None),
        "in template": (f"<template>{NO}</template>{YES}", "yes"),
        "in a template in a template": (
            f"<template><template>{NO}</template>{NO}</template>{YES}", "yes"),
        "in a paragraph in a template": (f"<template><p>{NO}</p></template>{YES}", "yes"),
        "in textarea": (f"<textarea>{NO}</textarea>{YES}", "yes"),
        "in title": (f"<title>{NO}</title>{YES}", "yes"),
        "in style": (f"<style>{NO}</style>{YES}", "yes"),
        "in script": (f"<script>'{NO}'</script>{YES}", "yes"),
        "in script, escaped": (f"<script><!-- {NO} --></script>{YES}", "yes"),
        "in script, escaped twice": (
            f"<script><!-- <script> </script> {NO} --></script>{YES}", "yes"),
        "in a data block": (f"<script type=text/template>{NO}</script>{YES}", "yes"),
        "in iframe": (f"<iframe>{NO}</iframe>{YES}", "yes"),
        "in srcdoc": (f'<iframe srcdoc="{NO}"></iframe>{YES}', "yes"),
        "in noembed": (f"<noembed>{NO}</noembed>{YES}", "yes"),
        "in noframes": (f"<noframes>{NO}</noframes>{YES}", "yes"),
        "in xmp": (f"<xmp>{NO}</xmp>{YES}", "yes"),
        "after plaintext": (f"<plaintext>{NO}", None),
        "in an attribute": (f'<p title="{NO}">x</p>{YES}', "yes"),
        "in svg it breaks out": (f"<svg><desc>d</desc>{YES}</svg>", "yes"),
        "in svg's title": (f"<svg><title>t</title></svg>{YES}", "yes"),
        "in math it breaks out": (f"<math><mi>x</mi>{YES}</math>", "yes"),
        "in a select": (f"<select><option>a</select>{YES}", "yes"),
        "in a frameset page": (f"<html><head>{YES}</head><frameset><frame src=x>", "yes"),
        "a plain page": ("<p>nothing</p>", None),
    },
    "comments": {
        "a comment": (f"<!-- {NO} -->{YES}", "yes"),
        "an unclosed comment": (f"<!-- {NO} {NO}", None),
        "a comment that ends oddly": (f"<!-- {NO} --!>{YES}", "yes"),
        "an empty comment": (f"<!-->{YES}", "yes"),
        "an almost empty comment": (f"<!--->{YES}", "yes"),
        "dashes in a comment": (f"<!-- a -- b {NO} -->{YES}", "yes"),
        "a comment in a comment": (f"<!-- <!-- {NO} -->{YES}", "yes"),
        "a bogus comment": (f"<! x>{YES}", "yes"),
        "a processing instruction": (f"<?php echo 1 ?>{YES}", "yes"),
        "a conditional comment": (f"<!--[if IE]>{NO}<![endif]-->{YES}", "yes"),
        "a revealed conditional comment": (f"<![if !IE]>{YES}<![endif]>", "yes"),
        "a hidden and revealed one": (f"<!--[if !IE]><!-->{YES}<!--<![endif]-->", "yes"),
        "CDATA outside svg is a bogus comment": (f"<![CDATA[ a > {YES} ]]>", "yes"),
        "an end tag that is a comment": (f"</ {NO}{YES}", "yes"),
    },
    "entities": {
        "the five": (named("&lt;a&gt; &amp; &quot;b&quot; &apos;c&apos;"), "<a> & \"b\" 'c'"),
        "escaped twice": (named("&amp;lt;b&amp;gt; &amp;amp;"), "&lt;b&gt; &amp;"),
        "escaped three times": (named("&amp;amp;amp;"), "&amp;amp;"),
        "names": (named("&eacute;&hellip;&mdash;&copy;&euro;&zwj;x"), "é…—©€\u200dx"),
        "names in capitals": (named("&LT; &AMP; &COPY; &Eacute;"), "< & © É"),
        "a name for two characters": (named("&NotEqualTilde;"), "≂̸"),
        "no semicolon at the end": (named("a &lt"), "a <"),
        "no semicolon before a space": (named("&copy x"), "© x"),
        "no semicolon before a letter": (named("&copyx &ampx"), "&copyx &ampx"),
        "no semicolon before an equals sign": (named("?a=1&copy=2&lang=3"), "?a=1&copy=2&lang=3"),
        "no semicolon before a digit": (named("&copy2020"), "&copy2020"),
        "no such name": (named("&nonsense; &x;"), "&nonsense; &x;"),
        "an ampersand alone": (named("a & b && c&"), "a & b && c&"),
        "AT&T": (named("AT&T, Q&A"), "AT&T, Q&A"),
        "decimal": (named("&#65;&#20013;&#128512;"), "A中😀"),
        "hexadecimal": (named("&#x41;&#X4E2D;&#x1f600;"), "A中😀"),
        "a number without a semicolon": (named("&#65 &#x42, &#67"), "A B, C"),
        "a number with zeros before": (named("&#0000065;&#x00000041;"), "AA"),
        "no digits": (named("&#; &#x; &#xg;"), "&#; &#x; &#xg;"),
        "windows-1252: euro and quotes": (named("&#128;&#147;a&#148;&#150;&#x99;"), "€“a”–™"),
        "windows-1252: all that are letters": (named("&#138;&#140;&#142;&#154;&#156;&#158;&#159;"),
                                               "ŠŒŽšœžŸ"),
        "windows-1252: an undefined one is a control": (named("a&#129;&#x8d;b"), "ab"),
        "NUL": (named("a&#0;b&#x0;c"), "a\ufffdb\ufffdc"),
        "a surrogate": (named("a&#xD800;b&#xDFFF;c"), "a\ufffdb\ufffdc"),
        "a pair of surrogates": (named("&#xD83D;&#xDE00;"), "\ufffd\ufffd"),
        "beyond Unicode": (named("a&#x110000;b&#99999999999;c"), "a\ufffdb\ufffdc"),
        "the last of Unicode": (named("a&#x10FFFF;b"), "a\U0010ffffb"),
        "a noncharacter": (named("a&#xFFFE;b"), "a\ufffeb"),
        "a control": (named("a&#1;b&#31;c&#127;d"), "ab cd"),
        "white space": (named("a&#32;&#9;&#10;&#13;&#160;b"), "a b"),
    },
    "white space and controls": {
        "collapsed": (named("  a \t\r\n b  "), "a b"),
        "no-break space": (named("a\u00a0\u00a0b"), "a b"),
        "ideographic": (named("中\u3000文"), "中 文"),
        "of Unicode": (named("a\u2003b\u2009c\u202fd\u205fe\u1680f"), "a b c d e f"),
        "separators of lines": (named("a\u2028b\u2029c"), "a b c"),
        "vertical tab and form feed": (named("a\x0bb\x0cc"), "a b c"),
        "next line": (named("a\u0085b"), "a b"),
        "C0": (named("a\x01\x02b\x1bc\x7fd"), "abcd"),
        "C1": (named("a\u0080b\u009fc"), "abc"),
        "NUL": (named("a\0b"), "a\ufffdb"),
        "NUL in the tag name": (f"<me\0ta name=description content=no>{YES}", "yes"),
        "NUL between tags": (f"\0{YES}", "yes"),
        "zero width stays": (named("a\u200bb\u200cc\u200dd\ufeffe\u2060f"),
                             "a\u200bb\u200cc\u200dd\ufeffe\u2060f"),
        "a soft hyphen stays": (named("long\u00adword"), "long\u00adword"),
        "bidi marks stay": (named("\u200fא\u202eb\u202c\u2066c\u2069"),
                            "\u200fא\u202eb\u202c\u2066c\u2069"),
        "tag characters and variation selectors stay": (named("⌚\ufe0f\U000e0041"),
                                                         "⌚\ufe0f\U000e0041"),
        "private use stays": (named("\ue000\U000f0000"), "\ue000\U000f0000"),
    },
    "normal forms": {
        "NFD becomes NFC": (named("Cafe\u0301 u\u0308"), "Café ü"),
        "Hangul from its letters": (named("\u1112\u1161\u11ab"), "한"),
        "a canonical equivalent": (named("\u212b \u2126"), "Å Ω"),
        "compatibility forms stay": (named("Ａ① ﬁ ㌔ ²"), "Ａ① ﬁ ㌔ ²"),
        "half-width kana stay": (named("ｶﾞ"), "ｶﾞ"),
        "a CJK compatibility ideograph": (named("\uf900"), "豈"),
        "a control between letter and mark": (named("e\x01\u0301"), "é"),
        "a mark at the start": (named("\u0301x"), "\u0301x"),
    },
    "broken off": {
        "before the tag": ("<html><head>", None),
        "in the tag name": ("<html><me", None),
        "after the tag name": ("<html><meta ", None),
        "in the attribute name": ("<html><meta name=description cont", None),
        "after the equals sign": ("<html><meta name=description content=", None),
        "in the value": ('<html><meta name="description" content="half a capt', None),
        "after the value": ('<html><meta name="description" content="whole"', None),
        "in an unquoted value": ("<html><meta name=description content=half", None),
        "after the tag": ('<html><meta name="description" content="whole">', "whole"),
        "in an entity": ('<meta name="description" content="a &am', None),
        "in a comment": (YES + "<!-- x", "yes"),
        "in a script": (YES + "<script>var a = '", "yes"),
        "in a title": (YES + "<title>abc", "yes"),
        "in an unclosed title": (f"<title>abc {NO}", None),
        "in an unclosed script": (f"<script>abc {NO}", None),
        "in an unclosed style": (f"<style>abc {NO}", None),
        "in an unclosed textarea": (f"<textarea>abc {NO}", None),
        "in an unclosed template": (f"<template>abc {NO}", None),
        "in an unclosed noscript": (f"<noscript>abc {NO}", None),
        "a quote that never ends": (f'<p title="abc>{NO}', None),
        "a quote that ends at the next": ('<meta name="description" content="abc><p class="x">t',
                                          "abc><p class="),
        "a quote that was forgotten": ('<meta name="description content="x">' + YES, "yes"),
        "a tag that was not closed": (f"<p <b {YES}", None),
        "a tag not closed before meta": ('<meta charset="utf-8" <meta name=description content=x>',
                                         "x"),
    },
    "XML": {
        "XHTML": (('<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML '
                  '1.0 Strict//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd">'
                  '<html xmlns="http://www.w3.org/1999/xhtml"><head>'
                  '<meta name="description" content="x" /></head></html>'), "x"),
        "a declaration after white space": (f'\n <?xml version="1.0"?>{YES}', "yes"),
        "a style sheet": (f'<?xml-stylesheet href="a.css"?>{YES}', "yes"),
        "a document type with a subset": (f"<!DOCTYPE html [<!ENTITY a 'b'>]>{YES}", "yes"),
        "an entity of its own": (f"<!DOCTYPE html>{named('&a; &amp;')}", "&a; &"),
        "an end tag of meta": ('<meta name="description" content="x"></meta>', "x"),
    },
    "nesting": {
        "deep": ("<div>" * 600 + YES, "yes"),
        "very deep": ("<b>" * 5000 + YES, "yes"),
        "misnested": (f"<b><p></b>{YES}</p><i></b>", "yes"),
        "end tags alone": ("</div></p></br></x>" + YES, "yes"),
        "end tags alone, of what hides": (
            f"</template></noscript></title></script></svg></textarea>{YES}", "yes"),
        "two heads": (f"<head></head><head>{YES}</head>", "yes"),
        "two bodies": (f"<body><body class=x>{YES}", "yes"),
        "two pages": (f"<html><head></head><body></body></html><html><head>{YES}", "yes"),
        "text only": ("description content yes", None),
    },
}  # fmt: skip

INVISIBLE = {
    "zero width": "&#x200B;", "joiners": "&zwnj;&zwj;", "word joiners": "&#x2060;&#xFEFF;",
    "a soft hyphen": "&shy; &nbsp;", "Braille": "&#x2800;", "a filler of Hangul": "&#x3164;",
    "half a filler": "&#xFFA0;", "fillers": "&#x115F;&#x1160;", "a selector": "&#xFE0F;",
    "bidi": "&lrm;&#x202A;&#x2066;", "a tag character": "&#xE0041;", "an object": "&#xFFFC;",
    "a grapheme joiner": "&#x34F;", "a separator of Mongolian": "&#x180E;",
}  # fmt: skip
"""Descriptions that show nothing."""

# Blocks of JSON-LD: name -> (block, description).
JSON_LD: dict[str, tuple[str, str | None]] = {
    "of an article": ('{"@type": "Article", "description": "ld"}', "ld"),
    "in a graph": (
        ('{"@graph": [{"@type": "Person", "description": "no"}, '
        '{"@type": "Product", "description": "ld"}]}'), "ld"),
    "in a graph of one": ('{"@graph": {"@type": "Recipe", "description": "ld"}}', "ld"),
    "in a list": (
        ('[{"@type": "WebSite", "description": "no"}, '
        '{"@type": "BlogPosting", "description": "ld"}]'), "ld"),
    "in lists in a list": ('[[], [[{"@type": "Course", "description": "ld"}]]]', "ld"),
    "without a type": ('{"@context": "https://schema.org", "description": "no"}', None),
    "of a firm": ('{"@type": "Organization", "description": "no"}', None),
    "of a kind of firm": ('{"@type": "Corporation", "description": "no"}', None),
    "of a firm by address": ('{"@type": "http://schema.org/Organization", "description": "no"}',
                             None),
    "of a firm by prefix": ('{"@type": "schema:Organization", "description": "no"}', None),
    "of a type that is no text": ('{"@type": {"a": 1}, "description": "no"}', None),
    "by address": ('{"@type": "https://schema.org/Article/", "description": "ld"}', "ld"),
    "by prefix": ('{"@type": "schema:Article", "schema:description": "ld"}', "ld"),
    "by the alias of schema.org": ('{"type": "Article", "description": "ld"}', "ld"),
    "of several types": ('{"@type": ["Thing", "FAQPage"], "description": "ld"}', "ld"),
    "of the page before its product": (
        ('[{"@type": "Product", "description": "no"}, '
        '{"@type": "CollectionPage", "description": "ld"}]'), "ld"),
    "of the page in its article": (
        ('{"@type": "Article", "description": "no", '
        '"mainEntityOfPage": {"@type": "WebPage", "description": "ld"}}'), "ld"),
    "of what the page is about": (
        ('{"@type": "ProfilePage", "mainEntity": {"@type": "Person", "description": "ld"}}'), "ld"),
    "of what the page is about, by its name": (
        ('{"@graph": [{"@type": "Museum", "@id": "#a", "description": "ld"}, '
        '{"@type": "WebPage", "mainEntity": {"@id": "#a"}}]}'), "ld"),
    "of what the page is about, without a type": (
        '{"@type": "WebPage", "mainEntity": {"description": "no"}}', None),
    "of a firm without a name": (
        ('[{"@type": "WebPage", "mainEntity": {"@id": null}}, '
        '{"@type": "Person", "description": "no", "mainEntityOfPage": false}]'), None),
    "of what says that it is the page's": (
        '{"@type": "Museum", "mainEntityOfPage": "http://a.test/", "description": "ld"}', "ld"),
    "of an author": ('{"@type": "Article", "author": {"@type": "Person", "description": "no"}}',
                     None),
    "of what a list names": (
        '{"@type": "ItemList", "itemListElement": [{"@type": "Product", "description": "no"}]}',
        None),
    "in CDATA": ('//<![CDATA[\n{"@type": "Article", "description": "ld"}\n//]]>', "ld"),
    "in CDATA on a line": ('//<![CDATA[{"@type": "Article", "description": "ld"}//]]>', "ld"),
    "in bare CDATA": ('<![CDATA[{"@type": "Article", "description": "ld"}]]>', "ld"),
    "in CDATA behind block comments": (
        '/*<![CDATA[*/{"@type": "Article", "description": "ld"}/*]]>*/', "ld"),
    "in a comment": (' <!-- {"@type": "Article", "description": "ld"} --> ', "ld"),
    "with comments": (
        '/* a } */ {"@type": "Article", // the type, "\n "description": "l//d /* */" /* b */ }',
        "l//d /* */"),
    "with a comment without an end": ('/* {"@type": "Article", "description": "no"}', None),
    "with a semicolon": ('{"@type": "Article", "description": "ld"};', "ld"),
    "with a last comma": ('{"@type": ["Article",], "description": "l,}d", }', "l,}d"),
    "with a brace too many": ('{"@type": "Article", "description": "ld"}}', "ld"),
    "escaped": ("{&quot;@type&quot;:&quot;Article&quot;,&quot;description&quot;:&quot;ld&quot;}",
                "ld"),
    "escaped, with a semicolon": (
        "{&#34;@type&#34;:&#34;Event&#34;,&#34;description&#34;:&#34;ld&#34;};", "ld"),
    "with quotes in entities, and a last comma": (
        '{"@type": "Article", "description": "a &quot;b&quot;",}', 'a "b"'),
    "with entities": ('{"@type": "Article", "description": "a &amp; b"}', "a & b"),
    "with entities escaped twice": ('{"@type": "Article", "description": "&amp;amp;"}', "&amp;"),
    "with what only looks like an entity": ('{"@type": "Article", "description": "?a=1&copy=2"}',
                                            "?a=1&copy=2"),
    "with an entity of which nothing is seen": ('{"@type": "Article", "description": "&nbsp;"}',
                                                None),
    "with a new line in a string": ('{"@type": "Article", "description": "a\nb"}', "a b"),
    "with half a surrogate pair": ('{"@type": "Article", "description": "a\\ud83d"}', "a\ufffd"),
    "with a whole surrogate pair": ('{"@type": "Article", "description": "\\ud83d\\ude00"}', "😀"),
    "with escapes of scripts": (
        r"""{"@type": "Article", "description": "It\x27s \'C\x2b\x2b\' \u00e9 \\x27"}""",
        r"It's 'C++' é \x27"),
    "with NUL": ('{"@type": "Article", "description": "a\\u0000b"}', "ab"),
    "broken off": ('{"@type": "Article", "description": "no', None),
    "nested without end": ("[" * 100_000, None),
    "nested deep": ("[" * 900 + '{"@type": "Article", "description": "ld"}' + "]" * 900, "ld"),
}  # fmt: skip

# What browsers have no opinion on: name -> (source of the page, caption, source of the caption).
OURS: dict[str, tuple[str, str | None, str | None]] = {
    "property instead of name": ("<meta property=description content=p>", "p", "property"),
    "og by property": ("<meta property=og:description content=o>", "o", "og"),
    "og by name": ("<meta name=og:description content=o>", "o", "og"),
    "og in capitals": ("<meta property=OG:Description content=o>", "o", "og"),
    "twitter by name": ("<meta name=twitter:description content=t>", "t", "twitter"),
    "twitter by property": ("<meta property=twitter:description content=t>", "t", "twitter"),
    "dc": ("<meta name=DC.Description content=d>", "d", "dc"),
    "dcterms": ("<meta name=dcterms.description content=d>", "d", "dc"),
    "dcterms' abstract": ("<meta name=dcterms.abstract content=d>", "d", "dc"),
    "itemprop": ("<meta itemprop=description content=i>", "i", "itemprop"),
    "itemprop among others": ('<meta itemprop="about description" content=i>', "i", "itemprop"),
    "http-equiv": ("<meta http-equiv=Description content=h>", "h", "http-equiv"),
    "name before property": (
        "<meta property=og:description content=o><meta name=description content=n>", "n", "name"),
    "name and property in one tag": (
        '<meta name="description" property="og:description" content="both">', "both", "name"),
    "og before twitter": (
        "<meta name=twitter:description content=t><meta property=og:description content=o>",
        "o", "og"),
    "twitter before dc": (
        "<meta name=dc.description content=d><meta name=twitter:description content=t>",
        "t", "twitter"),
    "an empty name falls back": (
        "<meta name=description content=' '><meta property=og:description content=o>", "o", "og"),
    "an empty og falls further": (
        "<meta property=og:description content><meta itemprop=description content=i>",
        "i", "itemprop"),
    "og in noscript": (
        "<noscript><meta property=og:description content=no></noscript>", None, None),
    "og in a template": (
        "<template><meta property=og:description content=no></template>", None, None),
    **{
        f"JSON-LD {name}": (
            f'<script type="application/ld+json">{block}</script>',
            caption, "json-ld" if caption else None)
        for name, (block, caption) in JSON_LD.items()
    },
    "JSON-LD of another type": (
        '<script type="application/json">{"@type": "Article", "description": "no"}</script>',
        None, None),
    "JSON-LD in two blocks": (
        ('<script type="application/ld+json">{"@type": "Product", "description": "no"}</script>'
        '<script type="application/ld+json">{"@type": "WebPage", "description": "ld"}</script>'),
        "ld", "json-ld"),
    "JSON-LD behind a block that is none": (
        ('<script type="application/ld+json">var a</script>'
        '<script type="application/ld+json">{"@type": "Event", "description": "ld"}</script>'),
        "ld", "json-ld"),
    "a description that is no text": (
        ('<script type="application/ld+json">{"@type": "Article", "description": {"@value": "no"}}'
        "</script>"),
        None, None),
    "a title is no description": ("<title>no</title><h1>no</h1><p>no", None, None),
    "keywords are no description": ("<meta name=keywords content=no>", None, None),
    "an abstract is no description": ("<meta name=abstract content=no>", None, None),
    "only controls is empty": (named("\x01\x02 \x7f"), None, None),
    **{
        f"{name} is empty": (f"{named(text)}<meta property=og:description content=o>", "o", "og")
        for name, text in INVISIBLE.items()
    },
    "what is only invisible in part": (named("&#x200B;a&#x2800;"), "\u200ba\u2800", "name"),
    "a heart with its selector": (named("&#x2764;&#xfe0f;"), "\u2764\ufe0f", "name"),
    "a placeholder falls back": (
        named("{{ description }}") + "<meta property=og:description content=o>", "o", "og"),
    "a placeholder before another by name": (named("undefined") + YES, "yes", "name"),
    "placeholders fall further": (
        "<meta property=og:description content='...'><meta itemprop=description content=i>",
        "i", "itemprop"),
    "a placeholder alone": (named("%%excerpt%%"), "%%excerpt%%", "name"),
    "two placeholders": (
        named("null") + "<meta property=og:description content='{{ x }}'>", "null", "name"),
}  # fmt: skip


def page(declaration: str, text: str, codec: str) -> bytes:
    return f"<html><head>{declaration}{named(text)}<title>t</title></head>".encode(codec)


TEXTS = {
    # label: codec of Python that writes it, a text it can write, the standard's name of it
    "gbk": ("gbk", "简体中文网页", "gbk"),
    "gb2312": ("gbk", "镕基喆的网页", "gbk"),
    "GB_2312-80": ("gbk", "简体中文网页", "gbk"),
    "x-gbk": ("gbk", "简体中文网页", "gbk"),
    "gb18030": ("gb18030", "㙍𠀀中文😀", "gb18030"),
    "big5": ("big5", "繁體中文網頁", "big5"),
    "big5-hkscs": ("big5hkscs", "香港嘅網頁", "big5"),
    "x-x-big5": ("big5", "繁體中文網頁", "big5"),
    "shift_jis": ("cp932", "日本語①㈱～髙﨑ｱｲｳ", "shift_jis"),
    "x-sjis": ("cp932", "日本語のページ", "shift_jis"),
    "windows-31j": ("cp932", "日本語のページ", "shift_jis"),
    "euc-jp": ("euc_jp", "日本語のページ", "euc-jp"),
    "iso-2022-jp": ("iso2022_jp", "日本語のページ", "iso-2022-jp"),
    "euc-kr": ("cp949", "한국어 똠방각하 햏", "euc-kr"),
    "ks_c_5601-1987": ("cp949", "한국어 페이지", "euc-kr"),
    "windows-949": ("cp949", "한국어 페이지", "euc-kr"),
    "windows-1250": ("cp1250", "Příliš žluťoučký kůň", "windows-1250"),
    "windows-1251": ("cp1251", "Русский текст", "windows-1251"),
    "windows-1252": ("cp1252", "“déjà” – €", "windows-1252"),
    "windows-1253": ("cp1253", "Ελληνικά", "windows-1253"),
    "windows-1254": ("cp1254", "Türkçe ığş", "windows-1254"),
    "windows-1255": ("cp1255", "עברית", "windows-1255"),
    "windows-1256": ("cp1256", "العربية", "windows-1256"),
    "windows-1257": ("cp1257", "Latviešu ķ", "windows-1257"),
    "windows-1258": ("cp1258", "Tiê\u0301ng Viê\u0323t", "windows-1258"),
    "windows-874": ("cp874", "ภาษาไทย", "windows-874"),
    "tis-620": ("cp874", "ภาษาไทย", "windows-874"),
    "koi8-r": ("koi8_r", "Русский текст", "koi8-r"),
    "koi8-u": ("koi8_u", "Українська ґ", "koi8-u"),
    "ibm866": ("cp866", "Русский текст", "ibm866"),
    "x-mac-cyrillic": ("mac_cyrillic", "Русский текст", "x-mac-cyrillic"),
    "macintosh": ("mac_roman", "déjà", "macintosh"),
    "iso-8859-1": ("cp1252", "déjà – “vu”", "windows-1252"),
    "us-ascii": ("cp1252", "déjà – €", "windows-1252"),
    "iso-8859-2": ("iso8859_2", "Łódź", "iso-8859-2"),
    "iso-8859-5": ("iso8859_5", "Русский", "iso-8859-5"),
    "iso-8859-7": ("iso8859_7", "Ελληνικά", "iso-8859-7"),
    "iso-8859-8": ("iso8859_8", "עברית", "iso-8859-8"),
    "iso-8859-8-i": ("iso8859_8", "עברית", "iso-8859-8-i"),
    "iso-8859-9": ("cp1254", "Türkçe ğ", "windows-1254"),
    "iso-8859-15": ("iso8859_15", "œuvre €", "iso-8859-15"),
    "unicode-1-1-utf-8": ("utf-8", Z, "utf-8"),
    "utf8": ("utf-8", Z, "utf-8"),
}


def _labelled() -> dict[str, Case]:
    """Encodings that the header or the page names."""
    cases: dict[str, Case] = {}
    for number, (label, (codec, text, name)) in enumerate(TEXTS.items()):
        nfc = unicodedata.normalize("NFC", text)
        cases[f"header {label}"] = Case(
            page("", text, codec), nfc, charset=name, header=f"text/html; charset={label}"
        )
        form = (
            '<meta charset="{}">',
            "<meta http-equiv=content-type content='text/html;charset={}'>",
        )
        cases[f"meta {label}"] = Case(
            page(form[number % 2].format(label), text, codec), nfc, charset=name, header="text/html"
        )
    return cases


def _contested() -> dict[str, Case]:  # noqa: PLR0915 - a list
    """Encodings named twice, oddly, wrongly, or where a browser does not look; broken bytes."""
    cases: dict[str, Case] = {}
    gbk, big5 = "text/html; charset=gbk", "text/html; charset=big5"
    bare = "text/html"

    def add(
        title: str,
        content: bytes,
        charset: str | None = "gbk",
        header: str | None = bare,
        caption: str | None = Z,
        *,
        browser: bool = True,
    ) -> None:
        cases[title] = Case(content, caption, "name" if caption else None, charset, header, browser)

    add("header against meta", page("<meta charset=big5>", Z, "gbk"), header=gbk)
    add("header quoted", page("", Z, "gbk"), header='text/html; charset="gbk"')
    add("header in capitals", page("", Z, "gbk"), header="Text/HTML;CHARSET=GBK")
    add("header with other parameters", page("", Z, "gbk"), header="text/html; a=b; charset=gbk")
    add(
        "header unknown, meta known",
        page("<meta charset=gbk>", Z, "gbk"),
        header="text/html; charset=nonsense",
    )
    add(
        "header utf-7 is refused",
        page("<meta charset=gbk>", Z, "gbk"),
        header="text/html; charset=utf-7",
    )
    add("header empty", page("<meta charset=gbk>", Z, "gbk"), header="text/html; charset=")
    add("header utf-16be", page("", Z, "utf-16-be"), "utf-16be", "text/html; charset=utf-16be")
    add("header utf-16le", page("", Z, "utf-16-le"), "utf-16le", "text/html; charset=utf-16le")
    add(
        "header utf-16 is little", page("", Z, "utf-16-le"), "utf-16le", "text/html; charset=utf-16"
    )
    marks = {"utf-8": "utf-8", "utf-16-le": "utf-16le", "utf-16-be": "utf-16be"}
    for codec, name in marks.items():
        mark = "\ufeff".encode(codec)
        add(f"mark {name}", mark + page("", Z, codec), name)
        add(f"mark {name} against header", mark + page("", Z, codec), name, big5)
        add(f"mark {name} against meta", mark + page("<meta charset=big5>", Z, codec), name)
    add(
        "mark utf-16 against header utf-8", b"\xff\xfe" + page("", Z, "utf-16-le"), "utf-16le", UTF8
    )
    add("two marks", codecs.BOM_UTF8 * 2 + page("", Z, "utf-8"), "utf-8")
    add(
        "utf-32's mark is utf-16's", "\ufeff".encode("utf-32-le") + b"<p>", "utf-16le", caption=None
    )
    add("meta utf-16 is utf-8", page("<meta charset=utf-16>", Z, "utf-8"), "utf-8")
    add("meta utf-16be is utf-8", page("<meta charset=utf-16be>", Z, "utf-8"), "utf-8")
    add(
        "meta x-user-defined is windows-1252",
        page("<meta charset=x-user-defined>", "d\u00e9j\u00e0", "cp1252"),
        "windows-1252",
        caption="d\u00e9j\u00e0",
    )
    add(
        "header x-user-defined is itself",
        page("", "d\u00e9", "cp1252"),
        "x-user-defined",
        "text/html; charset=x-user-defined",
        "d\uf7e9",
    )
    add(
        "hz-gb-2312 is replaced",
        page("", Z, "hz"),
        "replacement",
        "text/html; charset=hz-gb-2312",
        None,
    )
    add(
        "iso-2022-kr is replaced",
        page("", "한국어", "iso2022_kr"),
        "replacement",
        "text/html; charset=iso-2022-kr",
        None,
    )
    add("meta unknown, then known", page("<meta charset=nonsense><meta charset=gbk>", Z, "gbk"))
    add("two metas: the first", page("<meta charset=gbk><meta charset=big5>", Z, "gbk"))
    add(
        "charset before http-equiv",
        page(
            '<meta http-equiv="content-type" content="text/html; charset=big5" charset=gbk>',
            Z,
            "gbk",
        ),
    )
    add(
        "content without http-equiv",
        page('<meta content="text/html; charset=big5"><meta charset=gbk>', Z, "gbk"),
    )
    add(
        "another http-equiv",
        page('<meta http-equiv=refresh content="9; charset=big5"><meta charset=gbk>', Z, "gbk"),
    )
    add(
        "pragma with quotes inside",
        page("<meta http-equiv=content-type content=\"text/html; charset='gbk'\">", Z, "gbk"),
    )
    add(
        "pragma with spaces",
        page('<meta http-equiv=Content-Type content="text/html; charset  =  gbk ; x">', Z, "gbk"),
    )
    add(
        "pragma without a type",
        page('<meta http-equiv=Content-Type content="charset=gbk">', Z, "gbk"),
    )
    add("spaces in the label", page('<meta charset=" gbk ">', Z, "gbk"))
    add("a slash after meta", page("<meta/charset=gbk/>", Z, "gbk"), browser=False)
    add("a slash after meta, quoted", page('<meta/charset="gbk"/>', Z, "gbk"))
    add("an attribute with an apostrophe", page("<meta name=it's charset=gbk>", Z, "gbk"))
    add("a greater than in quotes", page('<meta name="a > b" charset="gbk">', Z, "gbk"))
    add(
        "charset twice: the last, as Chromium has it",
        page("<meta charset=big5 charset=gbk>", Z, "gbk"),
    )
    add("meta in a comment", page("<!-- <meta charset=big5> --><meta charset=gbk>", Z, "gbk"))
    add(
        "meta in an attribute",
        page("<p title='<meta charset=gbk>'></p><meta charset=gbk>", Z, "gbk"),
    )
    add("meta in a script is seen blindly", page("<script>'<meta charset=gbk>'</script>", Z, "gbk"))
    late = "<!--" + " " * 1100 + "-->"
    add("meta after 1024 bytes", page(late + "<meta charset=gbk>", Z, "gbk"))
    add("meta across byte 1024", page(" " * 1000 + "<meta charset=gbk>", Z, "gbk"))
    add("late meta in the body", page(late + "<body><p>x<meta charset=gbk>", Z, "gbk"))
    add(
        "late meta in noscript counts, against the standard",
        page(f"{late}<noscript><meta charset=gbk></noscript>", Z, "gbk"),
    )
    for name in ("script", "style", "textarea", "title"):
        add(
            f"late meta in {name} is text",
            page(f"{late}<{name}>'<meta charset=big5>'</{name}><meta charset=gbk>", Z, "gbk"),
        )
    add(
        "late meta in an unclosed comment",
        page("", Z, "utf-8") + f"{late}<!-- <meta charset=big5>".encode(),
        "utf-8",
        browser=False,
    )
    add(
        "late meta in a script of an undeclared utf-8 page",
        page("", Z, "utf-8") + f"{late}<script>'<meta charset=big5>'</script>".encode(),
        "utf-8",
        browser=False,
    )
    add("XML declaration", b"<?xml version='1.0' encoding='gbk'?>" + page("", Z, "gbk"))
    add(
        "XML declaration in double quotes",
        b'<?xml version="1.0" encoding="GBK"?>' + page("", Z, "gbk"),
    )
    add(
        "XML declaration against header",
        b'<?xml version="1.0" encoding="big5"?>' + page("", Z, "gbk"),
        header=gbk,
    )
    add(
        "XML declaration against meta",
        b'<?xml version="1.0" encoding="big5"?>' + page("<meta charset=gbk>", Z, "gbk"),
    )
    add(
        "undefined bytes of windows-1252 are controls",
        page("", "aMb", "cp1252").replace(b"aMb", b"a\x81\x8d\x8f\x90\x9db"),
        "windows-1252",
        "text/html; charset=latin1",
        "ab",
    )
    add(
        "undefined bytes of windows-1253",
        page("", "aMb", "cp1252").replace(b"aMb", b"a\xaa\xd2\x81b"),
        "windows-1253",
        "text/html; charset=windows-1253",
        "a\ufffd\ufffdb",
    )
    add(
        "broken utf-8",
        page("", "aMb", "utf-8").replace(b"aMb", b"a\xff\xe4\xb8b\xc0\x80c"),
        "utf-8",
        UTF8,
        "a\ufffd\ufffdb\ufffd\ufffdc",
    )
    add(
        "a surrogate in utf-8",
        page("", "aMb", "utf-8").replace(b"M", b"\xed\xa0\x80"),
        "utf-8",
        UTF8,
        "a\ufffd\ufffd\ufffdb",
    )
    add(
        "half a pair in utf-16",
        "<meta name=description content='a\ud800b'>".encode("utf-16-le", "surrogatepass"),
        "utf-16le",
        "text/html; charset=utf-16",
        "a\ufffdb",
    )
    add(
        "an odd last byte of utf-16",
        page("", Z, "utf-16-le") + b"x",
        "utf-16le",
        "text/html; charset=utf-16",
    )
    add("broken gbk", page("", "aMb", "gbk").replace(b"M", b"\xff"), "gbk", gbk, "a\ufffdb")
    add(
        "a lead byte swallows no quote",
        page("", "aM", "gbk").replace(b"M", b"\x81"),
        "gbk",
        gbk,
        "a\ufffd",
    )
    add(
        "rows of Windows in EUC-JP",
        page("", "aMb", "ascii").replace(b"M", b"\xad\xa1\xa1\xc1\xad\xea"),
        "euc-jp",
        "text/html; charset=euc-jp",
        "a①～㈱b",
    )
    add(
        "half-width kana in EUC-JP",
        page("", "M", "ascii").replace(b'"M"', b'"\x8e\xb1\x8e\xb2"'),
        "euc-jp",
        "text/html; charset=euc-jp",
        "ｱｲ",
    )
    add(
        "JIS X 0212 in EUC-JP",
        page("", "M", "ascii").replace(b'"M"', b'"\x8f\xb0\xa1"'),
        "euc-jp",
        "text/html; charset=euc-jp",
        "丂",
    )
    add(
        "wave dash and minus of Windows in ISO-2022-JP",
        page("", "〜−", "iso2022_jp"),
        "iso-2022-jp",
        "text/html; charset=iso-2022-jp",
        "～－",
    )
    add(
        "a backslash of Shift_JIS",
        page("", "表示ソ", "cp932"),
        "shift_jis",
        "text/html; charset=shift_jis",
        "表示ソ",
    )
    return cases


DECLARED = _labelled() | _contested()

_LONG = {
    "gbk": ("gbk", "本站提供最新的手机评测和数码产品导购信息，欢迎访问"),
    "big5": ("big5", "本站提供最新的手機評測和數位產品導購資訊，歡迎光臨"),
    "shift_jis": ("cp932", "最新のスマートフォンのレビューとパソコンの比較情報をお届けします"),
    "euc-jp": ("euc_jp", "最新のスマートフォンのレビューとパソコンの比較情報をお届けします"),
    "euc-kr": ("cp949", "최신 스마트폰 리뷰와 컴퓨터 비교 정보를 제공합니다"),
    "windows-1251": ("cp1251", "Последние обзоры смартфонов и сравнение компьютеров"),
    "koi8-r": ("koi8_r", "Последние обзоры смартфонов и сравнение компьютеров"),
    "utf-8": ("utf-8", "Последние обзоры смартфонов и сравнение компьютеров"),
}
UNDECLARED = {
    f"{name} by {way}": Case(page("", text, codec), text, charset=name, header=header,
                             browser=False)
    for name, (codec, text) in _LONG.items()
    for way, header in (("nobody", None), ("a header without it", "text/html"))
}  # fmt: skip
UNDECLARED["utf-16 without a mark is not guessed, as in browsers"] = Case(
    page("", "plain text", "utf-16-le"), None, None, None, "text/html"
)
UNDECLARED["utf-7 is never decoded"] = Case(
    b"+ADw-meta name=description content=no+AD4-", None, None, None, "text/html; charset=utf-7"
)
UNDECLARED["utf-7 in its meta is never decoded"] = Case(
    b"<meta charset=utf-7><meta name=description content='+AGE-'>",
    "+AGE-",
    charset=None,
    header="text/html",
)
UNDECLARED["ASCII"] = Case(page("", "plain", "ascii"), "plain", header=None, browser=False)
UNDECLARED["utf-8 cut in a character"] = Case(
    page("", Z, "utf-8") + "中".encode()[:2], Z, header=None, browser=False
)
UNDECLARED["one accent of windows-1252"] = Case(
    page("", "caf\u00e9", "cp1252"), "café", charset=None, header=None, browser=False
)

CASES: dict[str, Case] = {
    **{
        f"{group}: {name}": Case(html.encode("utf-8", "surrogatepass"), caption,
                                 "name" if caption else None)
        for group, cases in HTML.items()
        for name, (html, caption) in cases.items()
    },
    **{
        f"ours: {name}": Case(html.encode(), caption, source, browser=False)
        for name, (html, caption, source) in OURS.items()
    },
    **{f"declared: {name}": case for name, case in DECLARED.items()},
    **{f"undeclared: {name}": case for name, case in UNDECLARED.items()},
}  # fmt: skip
