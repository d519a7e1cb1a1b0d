"""The stage: the layout, who becomes a pair and who a reject, reruns, kills and mistakes."""

import copy
import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from now_builder.config import build
from now_builder.errors import ConfigError, FormatError, NowError
from now_builder.formats.captions import read_captions
from now_builder.formats.features import captures_hash, open_features
from now_builder.formats.release import (
    Manifest,
    hash_of,
    open_regions,
    read_manifest,
    read_pairs,
    read_split_captions,
    stream_rejects,
)
from now_builder.formats.shard import Element, read_captures, read_plan, read_rows, write_shard
from now_builder.formats.split import read_split, write_split
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
from now_builder.package.verify import verify
from now_builder.program.stopping import stoppable
from now_builder.tokenize.run import tokenize
from now_builder.tokenize.settings import TokenizeSettings
from tests.kill_at_rename import run_until_rename

DATA = "now100k_precomp"
SPLITS = ("train", "dev", "test")
TRACKS = ("jieba", "bpe", "bert")
WITHOUT_FEATURES = 3

KILLED = """
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
settings = PackageSettings.model_validate_json(sys.argv[5])
package(*map(pathlib.Path, sys.argv[1:5]), settings, force="--force" in sys.argv)
"""


class World:
    """A crawl with its features and captions, and a truth about every page."""

    def __init__(self, folder: Path, captures: Path) -> None:
        self.captures, self.folder = captures, folder
        self.features, self.captions = folder / "features.h5", folder / "captions"
        self.truth = folder / "truth.parquet"

    def package(self, release: Path, force: bool = False, **settings) -> Manifest:  # noqa: FBT001, FBT002
        return package(
            self.captures, self.features, self.captions, release, PackageSettings(**settings), force
        )

    def kill(self, release: Path, point: int, *flags: str, **settings) -> bool:
        chosen = PackageSettings(**settings).model_dump_json(exclude_unset=True)
        inputs = (self.captures, self.features, self.captions, release, chosen)
        done = run_until_rename(point, KILLED, *inputs, *flags)
        assert done.returncode in {0, -signal.SIGKILL}, done.stderr
        return done.returncode != 0


@pytest.fixture(scope="module")
def world(
    small_crawl: Path, small_captions: Path, make_features: Callable[..., None], tmp_path_factory
) -> World:
    world = World(tmp_path_factory.mktemp("world"), small_crawl)
    keys = [row.key for row in read_rows(small_crawl) if row.status == "ok"]
    make_features(world.features, keys[WITHOUT_FEATURES:])
    shutil.copytree(small_captions, world.captions)
    urls = [line.url for line in read_plan(small_crawl)]
    matched = [number % 3 != 0 for number in range(len(urls))]
    pd.DataFrame({"url": urls, "matched": matched}).to_parquet(world.truth)
    return world


@pytest.fixture(scope="module")
def release(world: World) -> Path:
    """A release with dev and test from matched pairs; read only."""
    release = world.folder / "release"
    world.package(release, matched=world.truth, dev=6, test=9, npy=True, contact="a@b.test")
    return release


def contents(release: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(release)): path.read_bytes()
        for path in sorted(release.rglob("*"))
        if path.is_file()
    }


def test_the_layout_is_the_published_one(release: Path) -> None:
    expected = {f"{DATA}/{split}.h5" for split in SPLITS}
    expected |= {f"{DATA}/{split}_{kind}" for split in SPLITS for kind in ("ids.txt", "ims.npy")}
    expected |= {f"{DATA}/{split}_caps_{track}.txt" for split in SPLITS for track in TRACKS}
    expected |= {f"vocab/{DATA}_vocab_{track}.json" for track in TRACKS}
    expected |= {"vocab/bpe.tokenizer.json", "vocab/bert.tokenizer.json"}
    expected |= {"pairs.parquet", "rejects.parquet", "DATASET_CARD.md", "croissant.json"}
    assert {*contents(release)} == expected | {"manifest.json"}
    assert {*read_manifest(release).files} == expected


def test_every_reject_has_the_reason_that_its_row_gives(world: World, release: Path) -> None:
    rows = {row.key: row for row in read_rows(world.captures)}
    with open_features(world.features) as features:
        has_features = {*features.keys}
    seen = set()
    for reject in stream_rejects(release):
        row = rows[reject.key]
        if row.status in {"failed", "refused"}:
            expected = f"{row.status}:{row.error}"
        elif row.status == "duplicate":
            expected = "duplicate"
        elif not row.caption:
            expected = "no_caption"
        elif reject.key not in has_features:
            expected = "no_features"
        else:
            assert reject.split in {"dev", "test"}
            expected = reject.reason
            assert expected in {"not_matched", "over_size"}
        assert reject.reason == expected
        seen.add(expected.partition(":")[0])
    assert seen == {
        "failed", "refused", "duplicate", "no_caption", "no_features", "not_matched", "over_size",
    }  # fmt: skip


def test_arrays_captions_and_keys_are_in_pair_order(world: World, release: Path) -> None:
    ids = {track: read_captions(world.captions / f"{track}.txt") for track in TRACKS}
    pairs = read_pairs(release)
    with open_features(world.features) as features:
        whole = features.read(slice(None))
    place = {key: row for row, key in enumerate(whole.keys)}
    for split in SPLITS:
        own = [pair for pair in pairs if pair.split == split]
        assert [pair.pair_index for pair in own] == list(range(len(own)))
        rows = np.array([place[pair.key] for pair in own])
        with open_features(release / DATA / f"{split}.h5") as stored:
            assert stored.keys == [pair.key for pair in own]
            assert stored.attributes["detector"] == "tiny"
            found = stored.read(slice(None))
        expected = whole.take(rows)
        for name in ("regions", "boxes", "scores", "classes", "source", "n_regions"):
            assert np.array_equal(getattr(found, name), getattr(expected, name))
        assert np.array_equal(np.load(release / DATA / f"{split}_ims.npy"), expected.regions)
        assert [hash_of(page) for page in expected.regions] == [p.regions_sha256 for p in own]
        for track in TRACKS:
            captions = read_split_captions(release, split, track)
            assert captions.keys == [pair.key for pair in own]
            assert captions.captions == [ids[track][pair.key] for pair in own]
            assert captions.fingerprint == read_manifest(release).fingerprints[split][track]


def authors_loader(folder: Path, split: str, track: str) -> tuple[np.ndarray, list[list[int]], int]:
    """What the authors' data loader makes of the files: images, captions, number of words."""
    tree = json.loads((folder.parent / "vocab" / f"{DATA}_vocab_{track}.json").read_text())
    captions = []
    for line in (folder / f"{split}_caps_{track}.txt").read_text().splitlines():
        ids = [int(field) for field in line.strip().split(",") if field]
        captions.append([tree["word2idx"]["<start>"], *ids, tree["word2idx"]["<end>"]])
    return np.load(folder / f"{split}_ims.npy"), captions, tree["idx"]


@pytest.mark.parametrize("track", TRACKS)
def test_the_authors_loader_reads_the_release_unchanged(release: Path, track: str) -> None:
    for split in SPLITS:
        images, texts, words = authors_loader(release / DATA, split, track)
        captions = read_split_captions(release, split, track)
        assert images.dtype == np.float32
        assert texts == [[1, *ids, 2] for ids in captions.captions]
        assert max(map(max, texts)) < words
        with open_regions(release, split) as regions:
            assert np.array_equal(images, regions)
    assert verify(release) == []


def test_without_flags_a_rerun_keeps_the_release_and_its_settings(
    world: World, release: Path, tmp_path: Path
) -> None:
    copy = world.folder / "kept"
    world.package(copy, matched=world.truth, dev=6, test=9, npy=True, contact="a@b.test")
    before = contents(copy)
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("*.h5")}
    shutil.copy(
        copy / "manifest.json", copy / ".previous-manifest.json"
    )  # as a late kill leaves it
    assert world.package(copy).counts == read_manifest(release).counts
    assert contents(copy) == before
    assert times == {path: path.stat().st_mtime_ns for path in copy.rglob("*.h5")}
    world.package(copy, force=True)
    assert times != {path: path.stat().st_mtime_ns for path in copy.rglob("*.h5")}
    assert contents(copy) == before == contents(release)


def test_sizes_larger_than_the_pools_are_cut_with_a_warning(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = world.package(tmp_path / "release")
    assert f"train {manifest.counts['train']} of 98000" in caplog.text
    assert "dev and test are too small to tell methods apart: crawl more sites" in caplog.text
    assert "over_size" not in manifest.rejects


@pytest.mark.parametrize("chosen", [{"by": "page"}, {"by": "domain"}, {"seed": 4}])
def test_new_pools_are_chosen_with_a_warning_about_learned_pages(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, chosen: dict[str, object]
) -> None:
    release, learned = tmp_path / "release", read_split(world.captures / "split.toml")
    manifest = world.package(release, **chosen)
    log = caplog.text
    caplog.clear()
    pairs = [pair for pair in read_pairs(release) if pair.split != "train"]
    assert all(manifest.split.pool_of(pair.site, pair.key) == pair.split for pair in pairs)
    assert manifest.learned_split == learned
    seen = Counter(p.split for p in pairs if learned.pool_of(p.site, p.key) == "train")
    card = " ".join((release / "DATASET_CARD.md").read_text(encoding="utf-8").split())
    for split in ("dev", "test"):
        assert f"{seen[split]} of {manifest.counts[split]} pairs of {split}" in log
        assert f"{seen[split]} pairs of {split}" in card
    assert "train pool alone" not in card.partition("| tokenizer |")[0]
    assert world.package(release) == manifest, "kept without a flag"
    assert caplog.text == ""
    assert verify(release) == []
    back = world.package(release, by=learned.by, seed=learned.seed)
    assert (back.split, back.learned_split) == (learned, None)


def test_a_release_of_captures_that_were_crawled_again_with_other_pools_is_kept(
    world: World, release: Path, tmp_path: Path
) -> None:
    old, captures = tmp_path / "old", tmp_path / "captures"
    shutil.copytree(release, old)
    shutil.copytree(world.captures, captures)
    split = read_split(captures / "split.toml")
    write_split(captures / "split.toml", split.model_copy(update={"seed": split.seed + 1}))
    with pytest.raises(ConfigError, match=r"crawled again\. Give --split-seed"):
        package(captures, world.features, world.captions, old, PackageSettings())
    assert contents(old) == contents(release)


def test_the_sites_of_a_list_are_test_and_no_others(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = sorted({line.site for line in read_plan(world.captures)})
    listed = tmp_path / "sites.txt"
    some = f"# unseen\n{sites[0].upper()}\nhttps://{sites[1]}/a?b#c  # why\n\nelsewhere.example\n"
    listed.write_text(some, encoding="utf-8")
    release = tmp_path / "release"
    manifest = world.package(release, test_sites=listed)
    assert f"{listed}: no page in the crawl of elsewhere.example\n" in caplog.text
    assert {pair.site for pair in read_pairs(release) if pair.split == "test"} == {*sites[:2]}
    split = read_split(world.captures / "split.toml")
    dev = {pair.site for pair in read_pairs(release) if pair.split == "dev"}
    assert dev == {s for s in sites[2:] if split.pool_of(s, "") == "dev"}
    assert manifest.settings["test_sites"] == "../sites.txt"
    assert "2 named sites" in (release / "DATASET_CARD.md").read_text(encoding="utf-8")
    assert world.package(release) == manifest, "kept without a flag"
    table = tmp_path / "sites.csv"
    table.write_text(f"site,why\n{sites[0]},x\n", encoding="utf-8")
    world.package(release, test_sites=table)
    assert {pair.site for pair in read_pairs(release) if pair.split == "test"} == {sites[0]}
    assert world.package(release, test_sites="none").split == split


def test_sites_that_are_never_wanted_leave_an_existing_release(
    world: World, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    world.package(release)
    before = read_pairs(release)
    site = before[0].site
    listed = tmp_path / "never.txt"
    listed.write_text(f"# asked on Monday\n*.{site}  # and below\nelsewhere.example\n", "utf-8")
    manifest = world.package(release, never=listed)
    left = [pair.key for pair in read_pairs(release)]
    gone = {pair.key for pair in before if pair.site == site}
    assert gone.isdisjoint(left)
    assert left == [pair.key for pair in before if pair.site != site]
    assert gone <= {one.key for one in stream_rejects(release) if one.reason == "never"}
    assert manifest.settings["never"] == "../never.txt"
    listed.write_text("elsewhere.example\n", "utf-8")
    world.package(release)
    assert read_pairs(release) == before, "a changed list is read again"


def test_an_invalid_list_of_sites_is_one_clear_line(world: World, tmp_path: Path) -> None:
    for name, content, problem in (
        ("sites.txt", "elsewhere.example\n\n", "none of its 1 sites has a page in the crawl"),
        ("sites.txt", "site00.test\n\nnot a host\n", "line 3: found 'not a host', expected a host"),
        ("sites.csv", "host\nsite00.test\n", r"columns \['host'\], expected site or url"),
        ("gone.txt", None, "not a readable list of hosts"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(FormatError, match=rf"{re.escape(name)}: {problem}"):
            world.package(tmp_path / "release", test_sites=path)
        assert not (tmp_path / "release").exists()


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_ends_in_one_line_that_names_the_file(world: World, tmp_path: Path) -> None:
    for options in ({}, {"npy": True}):
        with pytest.raises(
            NowError, match=r"cannot be written \(File too large\); .*free some space"
        ) as e:
            stoppable(lambda **more: world.package(tmp_path / "r", **more), None)(**options)
        assert re.search(r"now100k_precomp/\w+\.(h5|npy): cannot", str(e.value))
        assert not list(tmp_path.glob("r/**/*.h5")), "nothing that is half-written"


def test_replacing_a_release_warns_of_changed_fingerprints(
    world: World, release: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, captions = shutil.copytree(release, tmp_path / "old"), tmp_path / "captions"
    shutil.copytree(world.captions, captions)
    tokenize(world.captures, captions, TokenizeSettings(bpe_vocabulary=320))
    package(world.captures, world.features, captions, old, PackageSettings(matched=[world.truth]))
    assert f"{old}: replacing the release" in caplog.text
    assert "the fingerprints of train (bpe), dev (bpe), test (bpe) change" in caplog.text


def test_an_empty_split_is_one_clear_line(world: World, tmp_path: Path) -> None:
    judged = tmp_path / "judged.csv"
    rows = "".join(f"{line.url},mismatch\n" for line in read_plan(world.captures))
    judged.write_text(f"url,matched\n{rows}", encoding="utf-8")
    with pytest.raises(ConfigError, match="no pair for dev and test") as caught:
        world.package(tmp_path / "release", matched=judged)
    message = str(caught.value)
    assert "not_matched" in message
    assert "seed" in message
    assert "\n" not in message
    assert not (tmp_path / "release").exists()


def test_pairs_on_which_two_judges_differ_are_not_in_test(world: World, tmp_path: Path) -> None:
    first, second = tmp_path / "ann.csv", tmp_path / "bob.csv"
    pd.read_parquet(world.truth).to_csv(first, index=False)
    alone = world.package(tmp_path / "alone", matched=[first], dev=6, test=9)
    (drawn, *_) = [pair.url for pair in read_pairs(tmp_path / "alone") if pair.split == "test"]
    second.write_text(f"url,matched\n{drawn},false\n", encoding="utf-8")
    release = tmp_path / "both"
    both = world.package(release, matched=[first, second], dev=6, test=9)
    assert both.counts == alone.counts
    assert drawn not in {pair.url for pair in read_pairs(release) if pair.split == "test"}
    assert both.settings["matched"] == ["../ann.csv", "../bob.csv"]
    assert world.package(release) == both, "without flags the same files are read again"
    second.write_text("url,matched\nhttps://elsewhere.example/,true\n", encoding="utf-8")
    with pytest.raises(FormatError, match=r"bob\.csv: none of its 1 lines"):
        world.package(release)


def test_features_that_are_not_finite_are_refused(world: World, tmp_path: Path) -> None:
    changed = copy.copy(world)
    changed.features = Path(shutil.copy(world.features, tmp_path / "features.h5"))
    with h5py.File(changed.features, "a") as file:
        file["regions"][7, 3, 5] = np.nan
        key = file["keys"].asstr()[7]
    with pytest.raises(FormatError, match=key + ": regions not finite"):
        changed.package(tmp_path / "r")
    assert not (tmp_path / "r" / "manifest.json").exists()


def test_ids_of_another_tokenize_run_are_refused(world: World, tmp_path: Path) -> None:
    captions = tmp_path / "captions"
    shutil.copytree(world.captions, captions)
    with (captions / "bpe.txt").open("a", encoding="utf-8") as file:
        file.write("99999_0000\t4\n")
    with pytest.raises(FormatError, match=r"bpe\.txt.*tokenize"):
        package(world.captures, world.features, captions, tmp_path / "r", PackageSettings())


def test_features_of_another_crawl_under_the_same_keys_are_refused(
    world: World, tmp_path: Path
) -> None:
    features, captures = tmp_path / "features.h5", tmp_path / "captures"
    shutil.copy(world.features, features)
    hashes = {row.key: row.sha256 for row in read_rows(world.captures)}
    with h5py.File(features, "a") as file:
        keys = file["keys"].asstr()[:]
        file.attrs["captures_sha256"] = captures_hash(keys, hashes)
    release = tmp_path / "release"
    manifest = package(world.captures, features, world.captions, release, PackageSettings())
    assert "captures_sha256" not in manifest.detector
    with open_features(release / DATA / "test.h5") as stored:
        assert "captures_sha256" not in stored.attributes
    shutil.copytree(world.captures, captures)
    pages = list(read_captures(captures, shards=[2]))
    rows = read_rows(captures, 2)
    place = next(place for place, row in enumerate(rows) if row.key in keys)
    rows[place] = replace(rows[place], sha256="0" * 64)
    write_shard(captures, 2, rows, pages)
    before = contents(release)
    with pytest.raises(FormatError, match=r"features\.h5: not made from the screenshots.*--force"):
        package(captures, features, world.captions, release, PackageSettings())
    assert contents(release) == before


def test_a_missing_input_is_one_clear_line(world: World, tmp_path: Path) -> None:
    for missing in ("captures", "features", "captions"):
        inputs = {name: getattr(world, name) for name in ("captures", "features", "captions")}
        inputs[missing] = tmp_path / "none"
        with pytest.raises(FormatError, match="no such"):
            package(*inputs.values(), tmp_path / "r", PackageSettings())
        assert not (tmp_path / "r").exists()


def test_pages_that_are_not_crawled_yet_are_rejects(world: World, tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    shutil.copytree(world.captures, captures)
    (captures / "00002.parquet").unlink()
    manifest = package(captures, world.features, world.captions, tmp_path / "r", PackageSettings())
    assert manifest.rejects["not_crawled"] == 50
    assert sum(manifest.rejects.values()) + sum(manifest.counts.values()) == 200


def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(
    world: World, release: Path
) -> None:
    settings = {"matched": world.truth, "dev": 6, "test": 9, "npy": True, "contact": "a@b.test"}
    killed = world.folder / "killed"
    for point in (1, 5, 14, 28):  # 28: just before the manifest
        assert world.kill(killed, point, **settings)
        assert not (killed / "manifest.json").exists()
    world.package(killed, **settings)
    assert contents(killed) == contents(release)


def test_captures_and_exports_are_no_folder_for_a_release(world: World) -> None:
    with pytest.raises(ConfigError, match=r"captures: contains captures \(plan\.parquet\)"):
        world.package(world.captures)


FILTERS = {"languages": "zh,en,ja,ru", "drop": "blank,email", "duplicate_captions": "exact"}
OFF = {"languages": "all", "drop": "blank,personal_data", "duplicate_captions": "keep"}


def test_filters_are_kept_counted_and_taken_back(world: World, tmp_path: Path) -> None:
    """Each drops pages into the rejects, with the reason; without them the release is as before."""
    plain, filtered = tmp_path / "plain", tmp_path / "filtered"
    world.package(plain)
    manifest = world.package(filtered, **FILTERS)
    assert {"language", "duplicate_caption"} <= {*manifest.rejects}
    assert verify(filtered) == []
    kept = {pair.key for pair in read_pairs(filtered)}
    before = {pair.key for pair in read_pairs(plain)}
    rejects = {reject.key: reject for reject in stream_rejects(filtered)}
    assert kept < before
    assert all(rejects[key].detail for key in before - kept)
    for pair in read_pairs(filtered):
        assert pair.lang in {"zh", "en", "ja", "ru"}
    card = (filtered / "DATASET_CARD.md").read_text(encoding="utf-8")
    assert "`duplicate_captions = exact`" in card
    assert f"| `language` | {manifest.rejects['language']} |" in card
    assert world.package(filtered).settings == manifest.settings  # kept without a flag
    world.package(filtered, **OFF)
    assert contents(filtered) == contents(plain)


def test_blank_pages_and_personal_data_are_left_out_and_other_flags_on_request(
    world: World, tmp_path: Path
) -> None:
    captures = tmp_path / "captures"
    shutil.copytree(world.captures, captures)
    rows, pages = read_rows(captures, 0), list(read_captures(captures, shards=[0]))
    dialog = Element(
        (0.0, 0.0, 720.0, 1280.0), "div", role="dialog", text="Cookies?",
        text_box=(0.0, 400.0, 720.0, 900.0),
    )  # fmt: skip
    with open_features(world.features) as features:
        usable = [row.key for row in rows if row.caption and row.key in {*features.keys}]
    blank, wall, mail = usable[:3]
    changes = {blank: {"ink_middle": 0.0}}
    changes[mail] = {"caption": "Ask Jane Doe, jane.doe@example.org"}
    elements = {page.key: [*page.elements, dialog] for page in pages if page.key == wall}
    write_shard(
        captures, 0, [replace(row, **changes.get(row.key, {})) for row in rows],
        [replace(page, elements=elements.get(page.key, page.elements)) for page in pages],
    )  # fmt: skip
    for path in captures.glob("*.tar"):  # pictures are never read
        path.write_bytes(path.read_bytes().replace(b"\x89PNG", b"\x00PNG"))

    def flagged(release: Path, **settings) -> tuple[dict[str, str], dict[str, str]]:
        inputs = (captures, world.features, world.captions)
        package(*inputs, release, PackageSettings(**settings))
        pairs = {pair.key: pair.flags for pair in read_pairs(release) if pair.flags}
        return pairs, {r.key: r.reason for r in stream_rejects(release) if "flag:" in r.reason}

    dropped = {blank: "flag:blank", mail: "flag:personal_data"}
    assert flagged(tmp_path / "one") == ({}, dropped)
    kept = {blank: "blank", mail: "email,personal_data"}
    assert flagged(tmp_path / "two", drop="none") == (kept, {})
    assert flagged(tmp_path / "three", drop="blank,personal_data,consent_wall") == (
        {}, dropped | {wall: "flag:consent_wall"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"drop": "blank,nonsense"}, "drop.*nonsense"), ({"languages": "Chinese"}, "languages"),
     ({"licence": "CC-BY-4.0"}, "licence"), ({"licence": ""}, "licence")],
)  # fmt: skip
def test_unknown_settings_are_one_clear_line(settings, problem) -> None:
    with pytest.raises(ConfigError, match=rf"^now-builder package: {problem}[^\n]*$"):
        build(PackageSettings, settings, "now-builder package")
