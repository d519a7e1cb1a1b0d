"""The report: numbers that are the release's own, nothing loaded, nothing escaping, any size."""

import re
from collections import Counter, deque
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.features import open_features
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.release import read_manifest, read_pairs, read_split_captions
from now_builder.formats.screenshots import data_uri
from now_builder.formats.split import SPLITS
from now_builder.formats.statistics import ReleaseStatistics, ceiling
from now_builder.formats.verdicts import Verdict, VerdictRow, open_verdicts
from now_builder.inspect.report import commonest_captions, lengths_of, read_rest, report
from now_builder.inspect.settings import ReportSettings


class Seen(HTMLParser):
    """Tags with their attributes, the text, and what is in an element of class ``caption``."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.captions: list[str] = []
        self._open = False

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if dict(attrs).get("class") == "caption":
            self.captions.append("")
            self._open = True

    def handle_endtag(self, tag):
        self._open = self._open and tag != "p"

    def handle_data(self, data):
        if self._open:
            self.captions[-1] += data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def look(world, tmp_path, **settings):
    output = tmp_path / "report.html"
    captures = settings.pop("captures", world.captures)
    release = settings.pop("release", world.release)
    said = report(release, ReportSettings(captures=captures, output=output, **settings))
    assert str(output) in said
    text = output.read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(text)
    return text, seen


def statistics_of(release):
    found = ReleaseStatistics()
    deque(found.read_pairs(release), maxlen=0)
    read_rest(release, read_manifest(release), found)
    return found


def test_the_numbers_are_those_of_the_obvious_slow_way(world):
    found, pairs = statistics_of(world.release), read_pairs(world.release)
    assert found.pairs == len(pairs)
    assert found.languages == Counter(pair.lang for pair in pairs)
    captions = Counter(pair.caption for pair in pairs)
    assert commonest_captions(world.release, found)[0] == captions.most_common(1)[0]
    by_split = {split: [p for p in pairs if p.split == split] for split in SPLITS}
    for split, own in by_split.items():
        numbers = found.splits[split]
        assert numbers.columns["site"].distinct == len({pair.site for pair in own})
        assert numbers.columns["caption"].distinct == len({pair.caption for pair in own})
        assert numbers.columns["caption"].largest_group == max(
            Counter(pair.caption for pair in own).values()
        )
        assert numbers.columns["image"].distinct == len({pair.regions_sha256 for pair in own})
        with open_features(world.release / "now100k_precomp" / f"{split}.h5") as features:
            batch = features.read(slice(None))
        assert numbers.detected_mean == pytest.approx(batch.n_regions.mean())
        assert numbers.sources == {0: 30 * len(own), 2: 6 * len(own)}
    for split in ("dev", "test"):
        for name in TOKENIZERS:
            lines = read_split_captions(world.release, split, name)
            images = [pair.regions_sha256 for pair in by_split[split]]
            expected = ceiling(images, [tuple(ids) for ids in lines.captions])
            assert found.splits[split].ceiling(name) == expected
    every = [
        len(ids) for split in SPLITS
        for ids in read_split_captions(world.release, split, "bpe").captions
    ]  # fmt: skip
    bpe = next(lengths for lengths in lengths_of(found) if lengths.unit == "BPE tokens")
    assert bpe.summary.mean == pytest.approx(np.mean(every))
    assert bpe.summary.p90 == pytest.approx(np.quantile(every, 0.9))
    assert bpe.summary.largest == max(every)
    assert bpe.histogram.startswith("data:image/svg+xml;base64,")


def test_the_page_shows_the_numbers_and_the_pairs(world, tmp_path):
    text, seen = look(world, tmp_path, pairs=7)
    manifest = read_manifest(world.release)
    for split in SPLITS:
        assert f"<dt>{split}</dt><dd>{manifest.counts[split]}<small>" in text
    for reason, count in manifest.rejects.items():
        cells = re.search(rf"{reason.replace(':', ': ')}</th>.*?class=\"num\">(\d+)<", text)
        assert int(cells[1]) == count
    pictures = [one for one in seen.of("img") if one["alt"].startswith("Screenshot")]
    assert len(pictures) == 7
    assert all(picture["alt"] and picture["src"].startswith("data:image/") for picture in pictures)
    paths = [path for path in seen.of("path") if "detector" in path["class"]]
    assert all(path["d"].count("M") == 30 for path in paths[1:])
    captions = {pair.caption for pair in read_pairs(world.release)}
    assert set(seen.captions) <= captions
    assert [tag for tag, _ in seen.tags if re.fullmatch("h[1-6]", tag)][:2] == ["h1", "h2"]
    assert seen.of("html")[0]["lang"] == "en"


def test_a_page_loads_nothing_and_has_no_script(world, tmp_path, run):
    text, seen = look(world, tmp_path, pairs=3, run=run)
    assert not {"script", "link", "iframe", "object", "embed", "form"} & {t for t, _ in seen.tags}
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text
    sources = [value for _, found in seen.tags for name, value in found.items() if name == "src"]
    kinds = ("data:image/webp;base64,", "data:image/svg+xml;base64,")
    assert all(source.startswith(kinds) for source in sources)
    assert not any(name.startswith("on") for _, found in seen.tags for name in found)


def test_hostile_captions_are_shown_as_text(hostile, tmp_path):
    text, seen = look(hostile, tmp_path, pairs=40)
    assert {pair.caption for pair in read_pairs(hostile.release) if len(pair.caption) < 400} <= {
        *seen.captions
    }
    assert not seen.of("script")
    assert not any(link["href"].startswith("javascript") for link in seen.of("a"))
    assert "… (10,000 characters)" in text
    assert len(text.encode()) < 10e6


def test_a_run_adds_its_noise_and_its_most_telling_pairs(world, tmp_path, run, monkeypatch):
    """41 rising probabilities: as many at most one half as above; 0, the middle and 1 are shown."""
    monkeypatch.setattr("now_builder.inspect.report._EXTREMES", 3)
    text, seen = look(world, tmp_path, pairs=1, run=run)
    train = [pair for pair in read_pairs(world.release) if pair.split == "train"]
    beliefs = read_clean_prob(run, world.release)
    assert beliefs == dict(
        zip((p.key for p in train), np.linspace(0, 1, len(train)).tolist(), strict=True)
    )
    noisy = sum(value <= 0.5 for value in beliefs.values())
    assert f"({noisy} of {len(train)}; Wilson)" in text
    shown = [
        picture["alt"].split()[3]
        for picture in seen.of("img")
        if picture["alt"].startswith("Screenshot")
    ]
    keys = [pair.key for pair in train]
    assert shown[:3] == keys[:3]
    assert shown[6:9] == keys[::-1][:3]
    middle = len(keys) // 2
    assert set(shown[3:6]) <= set(keys[middle - 3 : middle + 3])
    assert "<h3>Estimated by <code>crossfit</code></h3>" in text
    assert f"(the run <code>{tmp_path.name}/run</code>: the division of the epoch that was" in text
    table = tmp_path / "beliefs.csv"
    pd.DataFrame({"key": keys, "clean_prob": beliefs.values()}).to_csv(table, index=False)
    assert read_clean_prob(table, world.release) == pytest.approx(beliefs)
    text, _ = look(world, tmp_path, pairs=1, run=table)
    assert "<h3>Estimated by <code>beliefs.csv</code></h3>" in text
    assert "a method's belief, which may be far off" in text


def test_audits_add_the_noise_that_was_measured(world, tmp_path, run):
    """Of 10 train pairs 4 mismatch and 1 is unsure: 4 of 9, Wilson 18.9 % to 73.3 %."""
    words = Counter[Verdict]({"mismatch": 4, "unsure": 1, "match": 5}).elements()
    train = [pair for pair in read_pairs(world.release) if pair.split == "train"]
    path = tmp_path / "audit.csv"
    with open_verdicts(path) as file:
        for pair, word in zip(train, words, strict=False):
            file.append(VerdictRow(pair.key, pair.url, "train", "", word, "ann", "", 1.0))
    text, _ = look(world, tmp_path, pairs=1, audit=[path])
    assert "Judged by 1 person" in text
    assert re.search(r"44\.4 %</td><td class=\"num\">18\.9 % to 73\.3 %", text)
    assert "1 judged pairs are left out" in text
    text, _ = look(world, tmp_path, pairs=1, audit=[path], run=run)
    assert "On 9 decided pairs the run below is correct for 44.4 %, with AUROC 1.000" in text


def test_clean_probabilities_that_do_not_fit_are_refused(world, tmp_path, run):
    numpy = pytest.importorskip("safetensors.numpy")
    division, settings, table = run / "divisions" / "00003.safetensors", run / "run.toml", "a.csv"
    whole, train = division.read_bytes(), read_manifest(world.release).counts["train"]

    def refused(message, source=run):
        with pytest.raises(FormatError, match=message):
            read_clean_prob(source, world.release)

    for values, message in (
        (np.zeros(3), "3 probabilities"), (np.full((2, 2), 0.5), "expected a list"),
        (np.full(train, 1.5), "expected 0 to 1"), (np.full(train, np.nan), "expected 0 to 1"),
    ):  # fmt: skip
        numpy.save_file({"clean_prob": values}, division)
        refused(message)
    division.write_bytes(whole[:100])
    refused("not a readable tensor file")
    division.unlink()
    refused("divides nothing")
    settings.write_text(re.sub('train = "..', 'train = "no', settings.read_text()))
    refused("another release")
    (tmp_path / table).write_text("key,clean\na,0.5\n")
    refused("clean_prob", tmp_path / table)
    key = read_pairs(world.release)[0].key  # another crawl gives its pages the same keys
    (tmp_path / table).write_text(f"key,url,clean_prob\n{key},http://elsewhere.test/,0.5\n")
    refused("of another crawl", tmp_path / table)


def test_captures_of_another_release_and_a_page_too_large_are_one_line(
    world, tmp_path, make_crawl, run, monkeypatch
):
    make_crawl(tmp_path / "other", 12)
    with pytest.raises(FormatError, match="not the captures that the release"):
        look(world, tmp_path, captures=tmp_path / "other")
    monkeypatch.setattr("now_builder.inspect.report._MAX_MB", 0.05)
    with pytest.raises(ConfigError, match="show fewer"):
        look(world, tmp_path, pairs=9, run=run)
    with pytest.raises(ConfigError, match=r"\.html"):
        report(world.release, ReportSettings(captures=world.captures, output=tmp_path / "a.csv"))


def test_pictures_shrink_to_their_budget(world, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (1280, 720, 3), np.uint8)
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(noise).save(tmp_path / "noise.png")
    png = (tmp_path / "noise.png").read_bytes()
    budgets = (1e6, 50_000.0, 10_000.0, 3_000.0)
    sizes = [len(data_uri("a", png, budget)) for budget in budgets]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size < budget + 30 for size, budget in zip(sizes, budgets, strict=True))
    with pytest.raises(FormatError, match="not a readable picture"):
        data_uri("a", png[:5000], 1e6)
