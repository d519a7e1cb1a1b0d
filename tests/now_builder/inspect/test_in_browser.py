"""Chromium shows the report and judges by keyboard and by touch; nothing hostile runs."""

import csv
import time

import pytest

from now_builder.formats.release import read_pairs
from now_builder.formats.verdicts import parse_verdicts
from now_builder.inspect.audit import sample_of, serving
from now_builder.inspect.report import report
from now_builder.inspect.settings import AuditSettings, ReportSettings
from tests.page_checks import complaints

pytestmark = pytest.mark.browser

READY = "!document.getElementById('match').disabled"


def stored(path):
    return parse_verdicts(path, path.read_bytes())


def opened(browser, url, **options):
    context = browser.new_context(**options)
    page, messages = context.new_page(), []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("requestfailed", lambda request: messages.append(request.url))
    page.goto(url)
    return page, messages


@pytest.fixture(scope="module", params=[(390, "light"), (1280, "light"), (390, "dark")])
def screen(request):
    return request.param


def test_the_report_can_be_read_anywhere(hostile, run, browser, screen):
    """No sideways scrolling, no blocked style, contrast of 4.5 to 1, texts in their direction."""
    path, (width, scheme) = run.with_suffix(".html"), screen
    settings = ReportSettings(captures=hostile.captures, run=run, output=path, pairs=14)
    report(hostile.release, settings)
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    page, messages = opened(browser, path.as_uri(), java_script_enabled=True, **options)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert not any(page.evaluate(beyond))
    assert page.title() == 'A "name": odd: report'
    assert page.locator("h1").count() == 1
    loaded = "[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)"
    assert page.evaluate(loaded)
    arabic = page.locator(".caption", has_text="مرحبا").first
    assert arabic.evaluate("e => getComputedStyle(e).direction") == "rtl"
    english = page.locator(".caption", has_text="</script>").first
    assert english.evaluate("e => getComputedStyle(e).direction") == "ltr"
    boxes = page.locator(".shot svg").first
    assert boxes.is_visible()
    page.get_by_label("region boxes").uncheck()
    assert not boxes.is_visible()
    assert screen != (1280, "light") or complaints(page) == []
    assert messages == []
    page.context.close()


def wait(page, expression, argument=None):
    """Wait until an expression holds; asked from here, since the page's policy forbids to poll."""
    until = time.monotonic() + 10
    while not page.evaluate(expression, argument):
        assert time.monotonic() < until, expression
        time.sleep(0.02)


def judge(page, *keys):
    for key in keys:
        count = page.inner_text("#count")
        wait(page, READY)
        page.keyboard.press(key)
        wait(page, "before => document.getElementById('count').textContent !== before", count)


def test_a_person_judges_by_keyboard_and_every_verdict_is_on_the_disk(hostile, tmp_path, browser):
    path = tmp_path / "audit.csv"
    settings = AuditSettings(captures=hostile.captures, output=path, sample=6)
    sample = [*sample_of(hostile.release, settings)]
    with serving(hostile.release, settings) as url:
        page, messages = opened(browser, url, viewport={"width": 1280, "height": 800})
        assert complaints(page) == []
        page.set_viewport_size({"width": 1280, "height": 800})
        seen = []
        for number, key in enumerate(("m", "2", "u"), 1):
            wait(page, READY)
            seen.append(page.locator("#caption").text_content())
            flags = sample[number - 1].flags.replace(",", ", ")
            assert page.locator("#flags").text_content() == flags
            assert page.locator("#flags").is_visible() == bool(flags)
            judge(page, key)
            assert [line.matched for line in stored(path)] == [
                "match", "mismatch", "unsure",
            ][:number]  # fmt: skip
        assert seen == [pair.caption for pair in sample[:3]]
        # A note is typed, not judged; Enter leaves it.
        page.keyboard.press("o")
        page.keyboard.type('mn, "u" z')
        page.keyboard.press("Enter")
        judge(page, "n")
        assert stored(path)[3].note == 'mn, "u" z'
        # Undo brings the pair back with its note.
        judge(page, "z")
        assert page.locator("#caption").text_content() == sample[3].caption
        assert page.input_value("#note") == 'mn, "u" z'
        assert len(stored(path)) == 3
        page.keyboard.press("Control+m")
        judge(page, "m", "m", "m")
        assert page.locator("#end").is_visible()
        assert page.title() == "Audit"
        assert messages == []
        page.reload()
        assert page.inner_text("#count") == "6 of 6 judged"
        page.context.close()
    assert [line.key for line in stored(path)] == [pair.key for pair in sample]


def test_a_verdict_that_was_not_stored_is_not_counted(world, tmp_path, browser):
    path = tmp_path / "audit.csv"
    settings = AuditSettings(captures=world.captures, output=path, sample=3)
    with serving(world.release, settings) as url:
        page, _ = opened(browser, url)
        judge(page, "m")
        wait(page, READY)
    page.keyboard.press("m")
    page.wait_for_selector("#problem:not([hidden])")
    assert "Not stored" in page.inner_text("#problem")
    assert page.inner_text("#count") == "1 of 3 judged"
    assert len(stored(path)) == 1
    page.context.close()


def test_a_phone_judges_by_touch(world, tmp_path, browser):
    path = tmp_path / "audit.csv"
    settings = AuditSettings(captures=world.captures, output=path, sample=3)
    options = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}
    with serving(world.release, settings) as url:
        page, messages = opened(browser, url, **options)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for verdict in ("mismatch", "match"):
            wait(page, READY)
            box = page.locator(f"#{verdict}").bounding_box()
            assert box["y"] + box["height"] <= 640
            assert box["height"] >= 44
            count = page.inner_text("#count")
            page.locator(f"#{verdict}").tap()
            wait(page, "before => document.getElementById('count').textContent !== before", count)
        assert messages == []
        page.context.close()
    assert [line.matched for line in stored(path)] == ["mismatch", "match"]


def test_verdicts_are_corrected_with_their_kind_by_keyboard(hostile, tmp_path, browser):
    """What was judged stands there, filled in; a match loses its kind, others keep or change it."""
    pairs = {pair.key: pair for pair in read_pairs(hostile.release)[1:4]}
    words = [("mismatch", "slogan"), ("unsure", ""), ("mismatch", '=odd, "x"')]
    before = {pair.url: word for pair, word in zip(pairs.values(), words, strict=True)}
    judged, path = tmp_path / "judged.csv", tmp_path / "mine.csv"
    rows = [[url, *word] for url, word in before.items()]
    with judged.open("w", newline="") as file:
        csv.writer(file).writerows([["url", "verdict", "kind"], *rows, ["http://no/", "yes", ""]])
    settings = AuditSettings(captures=hostile.captures, output=path, from_=judged, judge="bo")
    sample = [*sample_of(hostile.release, settings)]
    assert {pair.key for pair in sample} == {*pairs}
    with serving(hostile.release, settings) as url:
        page, messages = opened(browser, url, viewport={"width": 1280, "height": 800})
        expected = []
        for pair in sample:
            verdict, kind = before[pair.url]
            wait(page, READY)
            pressed = page.locator('.verdicts [aria-pressed="true"]')
            assert pressed.get_attribute("id") == verdict
            assert page.input_value("#note") == kind
            said = page.inner_text("#before")
            assert said == "Judged before: " + ", ".join(filter(None, (verdict, kind)))
            if verdict == "mismatch" and kind == "slogan":
                judge(page, "m")
                expected.append(("match", ""))
            elif verdict == "mismatch":
                judge(page, "n")
                expected.append((verdict, kind))
            elif verdict == "unsure":
                page.get_by_role("button", name="wrong language").click()
                judge(page, "n")
                expected.append(("mismatch", "wrong language"))
        assert messages == []
        page.context.close()
    assert [(line.matched, line.note) for line in stored(path)] == expected
