"""A release of pages that others may have copies of: who is in, what it says, what verify finds."""

import csv
import json
import shutil
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest
import yaml

from now_builder.errors import FormatError
from now_builder.formats.io import sha256_of
from now_builder.formats.release import LICENCES, read_manifest, read_pairs, stream_rejects
from now_builder.formats.shard import CaptureRow, read_plan
from now_builder.package.licences import is_free, read_sites, unlicensed
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
from now_builder.package.verify import verify

HEADER = "repository,commit,folder,host,licence"
STATED = ("MIT", "Apache-2.0", "", "GPL-3.0", "CC-BY-4.0", "CC-BY-NC-4.0", "CC0-1.0")


def write_list(path, sites):
    lines = [
        f"ann/s{number},{number:040x},docs,{site},{STATED[number % len(STATED)]}"
        for number, site in enumerate(sites)
    ]
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(small_crawl, small_features, small_captions, tmp_path_factory):
    """A list of all sites but the last, and how to package by it."""
    folder = tmp_path_factory.mktemp("licensed")
    hosts = sorted({line.site for line in read_plan(small_crawl)})
    path = write_list(folder / "sites.csv", hosts[:-1])

    def make(release=folder / "release", captures=small_crawl, **settings):
        settings = PackageSettings(**{"licensed": path, **settings})
        package(captures, small_features, small_captions, release, settings)
        return release

    make.sites, make.folder = read_sites(path), folder
    make()
    return make


@pytest.fixture
def release(made, tmp_path):
    return shutil.copytree(made.folder / "release", tmp_path / "release")


def rehash(release, **changes):
    """Make the manifest agree with the files as they are now."""
    path = release / "manifest.json"
    tree = json.loads(path.read_text(encoding="utf-8")) | changes
    for name, entry in tree["files"].items():
        file = release / name
        entry.update(sha256=sha256_of(file), bytes=file.stat().st_size)
    path.write_text(json.dumps(tree), encoding="utf-8")


def test_licences_that_ask_for_attribution_alone_are_free():
    for licence in ("Apache-2.0", "MIT", "mit", "BSD-3-Clause", "BSD", "CC-BY-4.0", "CC0-1.0"):
        assert is_free(licence)
    for licence in (
        "", "other", "GPL-3.0", "CC-BY-SA-4.0", "CC-BY-NC-4.0", "CC-BY-ND-4.0", "MIT AND GPL-3.0",
        "Commons-Clause", "BSD-3-Clause-No-Nuclear-License", "CC", "permit", "MIT\nGPL-3.0",
    ):  # fmt: skip
        assert not is_free(licence)


def test_an_empty_cell_of_parquet_is_no_licence_and_no_commit(tmp_path):
    path = tmp_path / "sites.parquet"
    row = {"host": ["a.test"], "licence": [None], "repository": ["a/b"], "commit": ["0"]}
    pd.DataFrame(row).to_parquet(path)
    assert read_sites(path)["a.test"]["licence"] == ""
    pd.DataFrame(row | {"licence": ["MIT"], "commit": [None]}).to_parquet(path)
    with pytest.raises(FormatError, match=r"row 2: commit of a\.test is empty"):
        read_sites(path)


def test_every_page_without_such_a_licence_is_a_reject_that_says_why(made, release, small_crawl):
    stated = {host: row["licence"] for host, row in made.sites.items()}
    pairs = read_pairs(release)
    assert pairs
    assert all(is_free(stated.get(pair.site, "")) for pair in pairs)
    rejects = [one for one in stream_rejects(release) if one.reason == "not_licensed"]
    for reject in rejects:
        expected = stated.get(reject.site, "not in the list of sites") or "none"
        assert reject.detail == expected
    assert {reject.detail for reject in rejects} == {
        "not in the list of sites", "none", "GPL-3.0", "CC-BY-NC-4.0",
    }  # fmt: skip
    # Nothing else is lost: the pairs are those of a release of all pages, whose sites are free.
    every = made(made.folder / "every", licensed="none")
    free = {pair.key for pair in read_pairs(every) if is_free(stated.get(pair.site, ""))}
    assert {pair.key for pair in pairs} == free
    assert not read_manifest(every).licences
    assert not (every / LICENCES).exists()


def test_manifest_card_and_metadata_name_licences_and_sources(made, release):
    pairs = Counter(pair.site for pair in read_pairs(release))
    rows = list(csv.DictReader((release / LICENCES).read_text(encoding="utf-8").splitlines()))
    assert {row["host"]: int(row.pop("pairs")) for row in rows} == pairs
    assert rows == [made.sites[row["host"]] for row in rows]
    counts = Counter[str]()
    for row in rows:
        counts[row["licence"]] += pairs[row["host"]]
    manifest = read_manifest(release)
    assert manifest.licences == counts
    assert manifest.settings["licensed"] == "../sites.csv"
    card = (release / "DATASET_CARD.md").read_text(encoding="utf-8")
    for licence, count in counts.items():
        assert f"| {licence} | {count} |" in card
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "other"
    croissant = json.loads((release / "croissant.json").read_text(encoding="utf-8"))
    assert {*croissant["license"]} == {"other", *counts}
    assert verify(release) == []


def test_a_page_that_led_to_another_site_is_out_whatever_its_own_licence():
    sites = {host: {"licence": "MIT"} for host in ("a.test", "b.test")}
    row = CaptureRow("k", "http://a.test/", "http://a.test/", "a.test", "ok")
    assert unlicensed(replace(row, final_url="HTTP://A.TEST:80/x"), sites) is None
    expected = "not_licensed", "led to b.test, whose licence is another"
    assert unlicensed(replace(row, final_url="http://b.test/"), sites) == expected


def test_verify_finds_a_page_without_a_licence_though_all_hashes_agree(release):
    text = (release / LICENCES).read_text(encoding="utf-8")
    for changed, expected in (
        (text.replace("MIT", "GPL-3.0"), "licences.csv: no licence that lets others have the"),
        (text.replace(",MIT,", ",BSD-2-Clause,"), "licences.csv: pairs by licence"),
        (text[: text.rindex("\n", 0, -1) + 1], "no licence that lets others have the"),
        (text.replace("ann/s0,", ",", 1), "repository of site00.test is empty"),
    ):
        assert changed != text
        (release / LICENCES).write_text(changed, encoding="utf-8")
        rehash(release)
        assert [expected in problem for problem in verify(release)] == [True], expected
    (release / LICENCES).write_text(text, encoding="utf-8")
    (release / LICENCES).write_text(text, encoding="utf-8")
    tree = json.loads((release / "manifest.json").read_text(encoding="utf-8"))
    rehash(release, files={name: tree["files"][name] for name in tree["files"] if name != LICENCES})
    assert any("lack licences.csv" in problem for problem in verify(release))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("host,licence\na.test,MIT\n", "columns .*, expected host, licence, repository, commit"),
        (f"{HEADER}\nr,c,,,MIT\n", "row 2: host is '', expected a host name that no other row"),
        (f"{HEADER}\nr,c,,a.test,MIT\nr,c,,A.test,GPL\n", "row 3: host is 'A.test', expected a h"),
        (f"{HEADER}\nr,,,a.test,MIT\n", "row 2: commit of a.test is empty"),
        (None, "no such file"),
    ],
)
def test_an_invalid_list_is_one_clear_line(made, tmp_path, content, expected):
    path = tmp_path / "list.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FormatError, match=rf"list\.csv: {expected}"):
        made(tmp_path / "release", licensed=path)
    assert not (tmp_path / "release").exists()
