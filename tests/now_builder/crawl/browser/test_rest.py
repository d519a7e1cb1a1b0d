"""Pages whose first screen is shown late, in many ways: the picture is what a phone shows."""

import io

import numpy as np
import pytest
from PIL import Image

from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.formats.shard import Capture, CaptureRow, read_captures, read_rows
from tests.now_builder.crawl.awkward import Awkward, page

pytestmark = [pytest.mark.browser]

BLUE = (0x20, 0x60, 0xC0)
BLOCK = "<p style='background:#2060c0;color:#fff;height:70px'>Bicycles to hire by the hour</p>"
BLOCKS = f"<main>{BLOCK * 6}</main>"
MAIN = "const main = document.querySelector('main');"
STEPS = (
    "const fade = (one, then) => { let share = 0; const timer = setInterval(() => {"
    " one.style.opacity = share += 0.05; if (share >= 1) { clearInterval(timer); then() } }, 16) };"
)
COVER = "<div class=cover style='position:fixed;inset:0;background:#fff;z-index:9'>Wait</div>"
REVEALED: dict[str, str] = {
    "steps": f"{BLOCKS}<script>{STEPS}{MAIN} main.style.opacity = 0;"
    "onload = () => setTimeout(() => fade(main, () => {}), 120)</script>",
    "one-after-another": f"{BLOCKS}<script>{STEPS}"
    "const blocks = [...document.querySelectorAll('main > p')];"
    "for (const one of blocks) one.style.opacity = 0;"
    "const next = () => { const one = blocks.shift();"
    " if (one) fade(one, () => setTimeout(next, 90)) };"
    " onload = () => setTimeout(next, 120)</script>",
    "transition": "<style>main { opacity: 0; transition: opacity .7s .3s } .on main { opacity: 1 }"
    f"</style>{BLOCKS}<script>onload = () => setTimeout("
    "() => document.body.classList.add('on'), 80)</script>",
    "staggered": "<style>p { opacity: 0; transform: translateY(90px); transition: all .5s }"
    f".in {{ opacity: 1; transform: none }}</style>{BLOCKS}<script>"
    "onload = () => document.querySelectorAll('p').forEach((one, place) => setTimeout("
    "() => one.classList.add('in'), 320 * place + 200))</script>",
    "animation-with-delay": "<style>main { opacity: 0; animation: show .5s 2.5s forwards }"
    f"@keyframes show {{ to {{ opacity: 1 }} }}</style>{BLOCKS}",
    "animations-in-a-chain": f"{BLOCKS}<script>{MAIN} main.style.opacity = 0;"
    "main.animate([{ opacity: 0 }, { opacity: 0 }], 900).onfinish = () =>"
    " main.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 900, fill: 'forwards' })"
    "</script>",
    "endless-slides": "<style>main { opacity: 0; animation: slide 9s infinite }"
    "@keyframes slide { 0% { opacity: 0 } 8%, 30% { opacity: 1 } 40%, 100% { opacity: 0 } }"
    f"</style>{BLOCKS}",
    "hidden-body": "<style>body { visibility: hidden }</style>" + BLOCKS
    + "<script>onload = () => setTimeout("
    "() => { document.body.style.visibility = 'visible' }, 500)</script>",
    "cover-that-fades": f"{BLOCKS}{COVER}<script>{STEPS}"
    "onload = () => setTimeout(() => { let share = 1; const timer = setInterval(() => {"
    " const cover = document.querySelector('.cover'); cover.style.opacity = share -= 0.05;"
    " if (share <= 0) { clearInterval(timer); cover.remove() } }, 16) }, 400)</script>",
    "cover-by-class": "<style>.gone { visibility: hidden; opacity: 0; transition: all .5s }</style>"
    f"{BLOCKS}{COVER}<script>onload = () => setTimeout("
    "() => document.querySelector('.cover').classList.add('gone'), 1100)</script>",
    "written-late": "<main>Loading</main><script>onload = () => setTimeout(() => {"
    f" document.querySelector('main').innerHTML = `{BLOCK * 6}` }}, 1000)</script>",
    "late-style-sheet": "<style>main { display: none }</style>" + BLOCKS
    + "<script>onload = () => { const link = document.createElement('link');"
    " link.rel = 'stylesheet'; link.href = '/slow.css';"
    " document.querySelector('main').append(link) }</script>",
    "shadow": "<div id=host></div><script>const root = host.attachShadow({ mode: 'open' });"
    f"root.innerHTML = `{BLOCKS}`; root.firstChild.style.opacity = 0;"
    "onload = () => setTimeout(() => { root.firstChild.style.opacity = 1 }, 700)</script>",
    "canvas": "<canvas width=340 height=560></canvas><script>onload = () => setTimeout(() => {"
    " const pen = document.querySelector('canvas').getContext('2d'); pen.fillStyle = '#2060c0';"
    " pen.fillRect(0, 0, 340, 560); pen.fillStyle = '#fff';"
    " for (let i = 0; i < 40; i += 1) pen.fillText('Bicycles to hire by the hour', 9, 14 * i);"
    " }, 700)</script>",
}  # fmt: skip
AT_REST: dict[str, str] = {
    "plain": BLOCKS,
    "class-by-scroll": f"{BLOCKS}<script>addEventListener('scroll', () =>"
    " document.body.classList.toggle('scrolled'))</script>",
    "follows-the-scroll": "<style>main { animation: leave linear forwards; animation-timeline:"
    " scroll() } @keyframes leave { to { opacity: 0 } }</style>"
    f"{BLOCKS}<div style='height:2000px'></div>",
    "waits-for-a-tap": "<style>main { animation: leave .4s forwards paused }"
    f"@keyframes leave {{ to {{ opacity: 0 }} }}</style>{BLOCKS}",
    "menu-off-screen": f"{BLOCKS}<nav style='position:fixed;left:100%;top:0'>Menu</nav>"
    "<script>setInterval(() => { document.querySelector('nav').style.opacity = Math.random()"
    " }, 20)</script>",
}  # fmt: skip
RESTLESS: dict[str, str] = {
    "ticker": f"{BLOCKS}<script>{MAIN} setInterval(() => {{"
    " main.style.marginLeft = `${performance.now() % 9}px` }, 20)</script>",
    "nothing": "",
    "header-alone": "<header style='background:#2060c0;height:90px'>Bicycles</header>",
}  # fmt: skip


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CaptureRow, Capture]]:
    folder = tmp_path_factory.mktemp("rest")
    with Awkward() as server:
        for name, body in (REVEALED | AT_REST | RESTLESS).items():
            server.pages[f"/rest/{name}"] = page(name, body, text="")
        urls = "\n".join(server.url(f"/rest/{name}") for name in REVEALED | AT_REST | RESTLESS)
        (folder / "urls.txt").write_text(urls, encoding="utf-8")
        settings = CrawlSettings(
            allow_private=True, resolve=server.resolve, settle_s=6.0, concurrency=3
        )
        crawl(folder / "urls.txt", folder / "captures", settings)
    captures = {capture.key: capture for capture in read_captures(folder / "captures")}
    rows = read_rows(folder / "captures")
    assert [(row.url, row.error) for row in rows if row.status != "ok"] == []
    return {row.caption or "": (row, captures[row.key]) for row in rows}


def _blue(capture: Capture) -> float:
    """Share of the blocks' colour."""
    with Image.open(io.BytesIO(capture.screenshot)) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.int16)
    return float((np.abs(pixels - BLUE).max(axis=2) <= 12).mean())


@pytest.mark.parametrize("name", REVEALED)
def test_what_is_shown_late_is_in_the_picture(crawled, name: str) -> None:
    assert _blue(crawled[name][1]) > 0.4


@pytest.mark.parametrize("name", AT_REST)
def test_a_page_at_rest_is_not_waited_for(crawled, name: str) -> None:
    row, capture = crawled[name]
    assert row.load_state == "settled"
    assert _blue(capture) > 0.4
    assert (row.ink or 0) > 0.1


@pytest.mark.parametrize("name", RESTLESS)
def test_a_page_that_moves_for_ever_or_stays_empty_says_so(crawled, name: str) -> None:
    assert crawled[name][0].load_state == "partial"


def test_an_empty_page_has_no_ink(crawled) -> None:
    row, _ = crawled["nothing"]
    assert (row.ink, row.ink_middle) == (0.0, 0.0)
    header, _ = crawled["header-alone"]
    assert (header.ink or 0) > 0.0
    assert header.ink_middle == 0.0
