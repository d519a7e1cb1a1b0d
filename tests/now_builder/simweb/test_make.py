"""The plan of a simulated web and the truth written beside it."""

import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import webencodings
from bs4 import BeautifulSoup

from now_builder.errors import ConfigError, FormatError
from now_builder.simweb.answer import Answer, Answers
from now_builder.simweb.make import make, read_world
from now_builder.simweb.settings import LANGUAGES, SimwebSettings
from now_builder.simweb.view import site_style
from now_builder.simweb.words import read_words
from now_builder.simweb.world import (
    COSTLY,
    WITH_CAPTION,
    WITHOUT_CAPTION,
    Page,
    World,
    build_world,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simweb") / "web"
    make(path, SimwebSettings())
    return path


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return read_world(folder)


@pytest.fixture(scope="module")
def truth(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "truth.parquet")


def test_the_same_seed_gives_the_same_bytes_in_another_process(
    folder: Path, world: World, tmp_path: Path
) -> None:
    """The name of a folder may be what the shell calls home."""
    code = (
        "import hashlib; from pathlib import Path\n"
        "from now_builder.simweb.make import make, read_world\n"
        "from now_builder.simweb.answer import Answers\n"
        "from now_builder.simweb.settings import SimwebSettings\n"
        "make(Path('~'), SimwebSettings())\n"
        "answers = Answers(read_world(Path('~')))\n"
        "pages = answers.world.pages[::40]\n"
        "bodies = [answers.of(f'site{p.site:02d}.test', p.target).body for p in pages]\n"
        "print(hashlib.sha256(b''.join(bodies)).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, cwd=tmp_path,
        env=os.environ | {"PYTHONHASHSEED": "2"},
    )  # fmt: skip
    answers = Answers(world)
    bodies = b"".join(answer_to(answers, page).body for page in world.pages[::40])
    assert done.stdout.decode().strip() == hashlib.sha256(bodies).hexdigest()
    for name in ("urls.txt", "truth.parquet", "simweb.toml"):
        assert (tmp_path / "~" / name).read_bytes() == (folder / name).read_bytes()
    other = build_world(SimwebSettings(seed=1))
    assert [page.description for page in other.pages] != [page.description for page in world.pages]


def test_each_site_has_one_language_and_six_topics_and_all_are_even(
    folder: Path, truth: pd.DataFrame
) -> None:
    listed = (folder / "urls.txt").read_text("utf-8").splitlines()
    assert listed == list(truth["url"].unique())
    assert len(listed) == 1000
    counts = truth["topic"].value_counts()
    assert len(counts) == 12
    assert counts.min() > 0.6 * counts.max()
    assert truth["lang"].value_counts().min() > 100
    pages = truth[truth["kind"] == "page"]
    assert sorted(truth["site"].unique()) == [f"site{number:02d}.test" for number in range(80)]
    assert truth.groupby("site")["lang"].nunique().max() == 1
    assert pages.groupby("site")["topic"].nunique().min() >= 6
    assert set(truth["lang"]) == {"zh", "en", "ja", "ru", "ko"}


def test_a_list_of_something_else_is_left_alone_and_a_stop_leaves_no_half_web(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FormatError, match=r"simweb\.toml"):
        read_world(tmp_path)
    with pytest.raises(ValueError, match="xx"):
        SimwebSettings(languages=["en", "xx"])
    (tmp_path / "urls.txt").write_text("http://own.test/\n")
    with pytest.raises(ConfigError, match=r"urls\.txt: not of a simulated web\. Give --force"):
        make(tmp_path, SimwebSettings(pages=20))
    make(tmp_path, SimwebSettings(pages=20), force=True)
    monkeypatch.setattr(pd.DataFrame, "to_parquet", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, SimwebSettings(pages=30))
    assert not (tmp_path / "simweb.toml").exists()
    (tmp_path / "simweb.toml").write_text("pages = -1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="pages"):
        read_world(tmp_path)
    monkeypatch.undo()
    make(tmp_path, SimwebSettings(pages=30))
    assert len(read_world(tmp_path).pages) >= 30


def test_a_short_list_gets_fewer_sites_not_poorer_ones() -> None:
    for pages in (1, 9, 40, 130):
        world = build_world(SimwebSettings(pages=pages))
        assert len(world.pages) == pages
        for site in world.sites:
            topics = {page.topic for page in world.pages if page.site == site.number}
            assert len(topics) >= min(6, pages)


def test_every_way_of_mismatch_occurs_as_often_as_asked_and_none_matches(
    truth: pd.DataFrame,
) -> None:
    for share in (0.0, 0.4, 1.0):
        world = build_world(SimwebSettings(mismatch=share))
        paired = [page for page in world.pages if page.caption and page.original is None]
        assert sum(not page.matched for page in paired) == round(share * len(paired))
    ways = {"other_page", "boilerplate", "garbled", "soup", "empty"}
    assert set(truth["mismatch"].dropna()) == ways
    assert not truth["matched"][truth["mismatch"].notna() | truth["caption"].isna()].any()
    other = truth[truth["mismatch"] == "other_page"]
    assert (other["topic"] != other["caption_topic"]).all()
    fitting = truth[truth["matched"]]
    assert (fitting["topic"] == fitting["caption_topic"]).all()


def test_every_awkward_kind_occurs_in_every_encoding_and_costly_ones_are_few(
    truth: pd.DataFrame,
) -> None:
    counts = truth["kind"].value_counts()
    assert set(counts.index) == {"page", *WITH_CAPTION, *WITHOUT_CAPTION, *COSTLY}
    assert counts.drop("page").sum() == 75
    assert all(counts[kind] <= 2 for kind in COSTLY)
    for kind in ("legacy_header", "legacy_meta", "legacy_undeclared"):
        found = set(truth["charset"][truth["kind"] == kind])
        assert {"gbk", "big5", "shift_jis", "euc-kr", "windows-1251"} <= found


def test_descriptions_are_long_enough_varied_and_about_their_topic(
    world: World, truth: pd.DataFrame
) -> None:
    for row in truth[truth["matched"] & (truth["kind"] == "page")].itertuples():
        words = row.caption.split()
        by_character = row.lang in {"zh", "ja"}
        assert 15 <= len(row.caption) <= 45 if by_character else 6 <= len(words) <= 24
        of = read_words("zh-Hant" if row.charset == "big5" else row.lang).topics[row.topic]
        said = row.caption.casefold()
        phrases = (*of.things, *of.acts, *(fact.rstrip(".") for fact in of.facts))
        assert any(phrase.casefold() in said for phrase in phrases)
    captions = truth["caption"][truth["matched"] & (truth["kind"] != "duplicate")]
    assert captions.nunique() > 0.9 * len(captions)
    english = read_words("en")
    for lang in (*LANGUAGES, "zh-Hant"):
        of_all = read_words(lang)
        assert of_all.topics.keys() == english.topics.keys()
        assert of_all.site.keys() == english.site.keys()
        for of in of_all.topics.values():
            assert len({*of.things, *of.acts, *of.facts}) >= 15


def test_no_address_names_a_topic_or_a_language(world: World) -> None:
    words = {word for word in (*world.topics, *LANGUAGES) if len(word) > 2}
    answers = Answers(world)
    for page in world.pages[::25]:
        body = answer_to(answers, page).body.decode("latin-1").lower()
        paths = [part.split('"')[0].split(")")[0] for part in body.split("/pic/")[1:]]
        addresses = " ".join([page.url.lower(), *paths])
        assert not [word for word in words if word in addresses]


def test_colours_and_template_belong_to_the_site_whatever_its_topics(world: World) -> None:
    """The parts before the first picture differ between sites only, never between topics."""
    answers = Answers(world)
    looks: dict[int, set[str]] = {}
    for page in world.pages[:90]:
        if page.kind == "page":
            text = webencodings.decode(answer_to(answers, page).body, page.charset)[0]
            soup = BeautifulSoup(text, "lxml")
            assert soup.style is not None
            tags = [tag.name for tag in soup.body.find_all(name=True, recursive=False)][:2]
            looks.setdefault(page.site, set()).add(soup.style.text + ",".join(tags))
    assert all(len(look) == 1 for look in looks.values())
    other_topics = build_world(SimwebSettings(topics=36))
    for one, two in zip(world.sites, other_topics.sites, strict=True):
        assert site_style(world, one) == site_style(other_topics, two)


def test_the_truth_is_what_the_served_bytes_say(world: World) -> None:
    """Decode as the page declares (or, where it does not, as it was written); parse; clean."""
    answers = Answers(world)
    seen: Counter[str] = Counter()
    awkward = [page for page in world.pages if page.kind != "page"]
    for page in [*world.pages[::12], *awkward]:
        answer = answer_to(answers, page)
        while answer.status in {301, 302, 303, 307, 308} and page.kind != "redirect_loop":
            answer = answers.of(world.sites[page.site].host, dict(answer.headers)["Location"])
        if answer.status != 200 or not (answer.content_type or "").startswith("text/html"):
            assert page.caption is None
            continue
        text = webencodings.decode(answer.body, page.charset)[0]
        found = _described(BeautifulSoup(text, "lxml"), page.kind)
        if page.kind == "robots":
            found = None
        assert found == page.caption, page
        seen[page.kind] += 1
    assert len(seen) > 10


def answer_to(answers: Answers, page: Page) -> Answer:
    return answers.of(answers.world.sites[page.site].host, page.target)


def _described(soup: BeautifulSoup, kind: str) -> str | None:
    if kind == "script_description":
        assert soup.find("meta", attrs={"name": "description"}) is None
        script = next(s.text for s in soup.find_all("script") if "m.content=" in s.text)
        value = json.loads(script.split("m.content=")[1].split(";document")[0])
    else:
        wanted = {"property": "og:description"} if kind == "og_only" else {}
        tags = (tag for tag in soup.find_all("meta", attrs=wanted)
                if wanted or (tag.get("name") or "").lower() == "description")  # fmt: skip
        value = next((tag["content"] for tag in tags), "")
    return " ".join(unicodedata.normalize("NFC", value).split()) or None
