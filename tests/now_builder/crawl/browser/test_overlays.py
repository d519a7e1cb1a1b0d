"""Cookie and consent overlays: hidden on request, the page beneath as it would be without them."""

from pathlib import Path

import pytest

from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.formats.shard import Capture, CaptureRow, read_captures, read_rows
from tests.now_builder.crawl.awkward import Awkward, page

pytestmark = [pytest.mark.browser]

CONTENT = (
    "<style>body { margin: 0; font: 16px/20px sans-serif } nav { position: sticky; top: 0;"
    " height: 50px; background: #246 } .on { position: fixed; left: 0; right: 0; bottom: 0;"
    " padding: 20px; background: #fff; z-index: 9 } .veil { position: fixed; inset: 0;"
    " background: rgba(0, 0, 0, 0.5) }</style>"
    "<nav><a href=/>Home</a> <a href=/cookies>Cookies</a></nav>"
    "<main><h1>News of the day</h1>" + "<p>It rained on the hills, and then it shone.</p>" * 60
)
LOCK = "<style>html, body { overflow: hidden; height: 100% }</style>"
ASK = "<p>We use cookies to make this site better.</p><button>Accept all</button>"


def within(identity: str, inner: str = f"<div class=on>{ASK}</div>") -> str:
    return f"<div {identity}>{inner}</div>"


SHADOW = (
    "<aside id=usercentrics-root></aside><script>document.querySelector('#usercentrics-root')"
    ".attachShadow({mode: 'open'}).innerHTML = `<div style='position:fixed; inset:auto 0 0 0;"
    " background:#fff'><p>Privacy</p><button>Accept</button></div>`</script>"
)
GENERIC_SHADOW = SHADOW.replace("usercentrics-root", "our-own").replace(
    "<p>Privacy</p>", "<p>Cookies, please, so that we know what you like</p><br><br>"
)
BOX = "<div class=on><p>{}</p><br><a href='#'>{}</a></div>"

HIDDEN: dict[str, tuple[str, set[str]]] = {
    "onetrust": (within("id=onetrust-consent-sdk"), {"onetrust"}),
    "cookiebot": (
        within("id=CybotCookiebotDialog class=on", ASK)
        + within("id=CybotCookiebotDialogBodyUnderlay class=veil", ""),
        {"cookiebot"},
    ),
    "didomi": (within("id=didomi-host") + LOCK, {"didomi"}),
    "quantcast": (within("class=qc-cmp2-container"), {"quantcast"}),
    "trustarc": (within("id=truste-consent-track class=on", ASK), {"trustarc"}),
    "usercentrics": (SHADOW, {"usercentrics"}),
    "sourcepoint": (
        within("id=sp_message_container_1234 class=on", "<iframe src=/plain></iframe>"),
        {"sourcepoint"},
    ),
    "cookieyes": (
        within("class='cky-consent-container on'", ASK) + within("class='cky-overlay veil'", ""),
        {"cookieyes"},
    ),
    "klaro": (within("class=klaro", within("class='cookie-notice on'", ASK)), {"klaro"}),
    "tarteaucitron": (within("id=tarteaucitronRoot"), {"tarteaucitron"}),
    "osano": (within("class='osano-cm-window on'", ASK), {"osano"}),
    "iubenda": (within("id=iubenda-cs-banner class=on", ASK), {"iubenda"}),
    "complianz": (within("class='cmplz-cookiebanner on'", ASK), {"complianz"}),
    "common": (within("class='cookie-banner on'", ASK), {"common"}),
    "own-with-veil": (
        within("class=veil", "") + within("class='on x7f'", ASK) + LOCK, {"asks", "veil"},
    ),
    "own-around": (within("class=veil", f"<div class='on x7f'>{ASK}</div>"), {"asks"}),
    "own-dialog": (
        f"<dialog id=d style='width:90%'>{ASK}</dialog><script>d.showModal()</script>", {"asks"},
    ),
    "own-shadow": (GENERIC_SHADOW, {"asks"}),
    "own-frame": (
        "<iframe class=on style='height:300px; border:0' title='Consent' src=/plain></iframe>",
        {"asks"},
    ),
    "zh": (BOX.format("本网站使用 Cookie 改善您的体验，详见隐私政策。", "同意"), {"asks"}),
    "ja": (BOX.format("当サイトではクッキーを使用しています。", "許可する"), {"asks"}),
    "ko": (BOX.format("이 사이트는 쿠키를 사용합니다.", "동의합니다"), {"asks"}),
    "de": (BOX.format("Ihre Einwilligung in die Verarbeitung", "Alle akzeptieren"), {"asks"}),
    "fr": (BOX.format("Nous respectons votre vie privée.", "Tout refuser"), {"asks"}),
    "es": (BOX.format("Usamos cookies propias y de terceros.", "Aceptar"), {"asks"}),
    "ru": (BOX.format("Мы используем файлы куки.", "Принять"), {"asks"}),
}  # fmt: skip

KEPT: dict[str, str] = {
    "bare": "",
    "sticky-footer": BOX.format("Call us about our cookie recipes", "Order now"),
    "bottom-navigation": within(
        "class=on", "<nav><a href=/>Home</a> <a href=/c>Cookies</a> <a href=/a>Accept</a></nav>"
    ),
    "sign-up": within(
        "class=on",
        "<p>Leave your e-mail; see our privacy policy.</p><input type=email><button>OK</button>",
    ),
    "small": "<div class=on style='padding:0; height:20px'>Cookies <a href='#'>OK</a></div>",
    "article-on-cookies": "<div class=cookie-notice>" + "<p>How to bake with flour</p>" * 5
    + "</div>",
    "fixed-page": "<div style='position:fixed; inset:0; overflow:auto; background:#eef'>"
    "<h1>An application</h1>" + "<p>All of it in one box.</p>" * 80 + ASK + "</div>",
    "locked-for-good": LOCK,
    "crowd": "<div class=cookie-notice>" + "<i></i>" * 150_000 + "</div>",
}  # fmt: skip


def crawled(folder: Path, overlays: str) -> dict[str, tuple[CaptureRow, Capture]]:
    bodies = {name: body for name, (body, _) in HIDDEN.items()} | KEPT
    with Awkward() as server:
        for name, body in bodies.items():
            server.pages[f"/on/{name}"] = page(name, CONTENT + "</main>" + body)
        urls = folder / "urls.txt"
        urls.write_text("\n".join(server.url(f"/on/{name}") for name in bodies), encoding="utf-8")
        settings = CrawlSettings.model_validate(
            {"allow_private": True, "resolve": server.resolve, "overlays": overlays}
        )
        crawl(urls, folder / overlays, settings)
    rows = read_rows(folder / overlays)
    found = zip(rows, read_captures(folder / overlays), strict=True)
    return {row.url.rpartition("/")[2]: (row, capture) for row, capture in found}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple]]:
    folder = tmp_path_factory.mktemp("overlays")
    return {overlays: crawled(folder, overlays) for overlays in ("keep", "hide")}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_overlay_is_hidden_and_nothing_else_changes(both, name: str) -> None:
    row, capture = both["hide"][name]
    assert set(row.overlays) == HIDDEN[name][1]
    assert capture.screenshot == both["keep"]["bare"][1].screenshot
    assert not [element for element in capture.elements if "ccept" in element.text]


@pytest.mark.parametrize("name", HIDDEN)
def test_by_default_overlays_stay(both, name: str) -> None:
    row, capture = both["keep"][name]
    assert row.overlays == []
    assert capture.screenshot != both["keep"]["bare"][1].screenshot


@pytest.mark.parametrize("name", KEPT)
def test_what_belongs_to_the_page_stays(both, name: str) -> None:
    row, capture = both["hide"][name]
    assert row.overlays == []
    assert capture.screenshot == both["keep"][name][1].screenshot
