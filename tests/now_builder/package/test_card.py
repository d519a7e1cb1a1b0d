"""Card and metadata: a head that the hub can read, and the numbers of the release itself."""

import json
import re
from pathlib import Path

import pytest
import yaml

from now_builder.formats.io import sha256_of
from now_builder.formats.release import read_manifest, read_pairs


@pytest.fixture(scope="module")
def release(small_release: Path) -> Path:
    return small_release


@pytest.fixture(scope="module")
def card(release: Path) -> str:
    return (release / "DATASET_CARD.md").read_text(encoding="utf-8")


def test_the_head_is_yaml_as_the_hub_expects(card: str) -> None:
    head = yaml.safe_load(card.split("---")[1])
    assert head["pretty_name"] == 'A "name": odd'
    assert head["license"] == "cc-by-nc-4.0"
    assert {*head["language"]} == {"zh", "en", "ja", "ru", "ko"}
    assert head["size_categories"] == ["n<1K"]
    assert "image-to-text" in head["task_categories"]


def test_every_word_of_the_head_is_one_that_the_hub_knows(card: str) -> None:
    datasets = pytest.importorskip("datasets")
    folder = Path(datasets.__file__).parent / "utils" / "resources"
    head = yaml.safe_load(card.split("---")[1])
    for field, file in {
        "language": "languages",
        "size_categories": "size_categories",
        "annotations_creators": "creators",
        "language_creators": "creators",
        "multilinguality": "multilingualities",
    }.items():
        known = json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
        known = known.get(field.split("_")[0], known) if isinstance(known, dict) else known
        assert head[field], field
        assert {*head[field]} <= {*known}, field


def test_the_cards_numbers_are_those_of_the_release(release: Path, card: str) -> None:
    manifest = read_manifest(release)
    for split, count in manifest.counts.items():
        assert re.search(rf"^\| {split} \| {count} \|", card, re.MULTILINE)
    for reason, count in manifest.rejects.items():
        assert f"| `{reason}` | {count} |" in card
    pairs = read_pairs(release)
    russian = sum(pair.lang == "ru" for pair in pairs)
    assert re.search(rf"^\| ru \| {russian} \|", card, re.MULTILINE)
    test = [pair.caption for pair in pairs if pair.split == "test"]
    assert f"| test | {len(test)} | {len(set(test))} |" in card
    assert "No pair of this release was judged" in card


def test_the_card_holds_no_caption_and_no_local_path(release: Path, card: str) -> None:
    texts = card + (release / "manifest.json").read_text(encoding="utf-8")
    texts += (release / "croissant.json").read_text(encoding="utf-8")
    assert str(release.parent) not in texts
    assert not any(pair.caption in card for pair in read_pairs(release) if len(pair.caption) > 9)


def test_the_metadata_names_every_data_file_by_its_hash(release: Path) -> None:
    tree = json.loads((release / "croissant.json").read_text(encoding="utf-8"))
    files = {entry["contentUrl"]: entry["sha256"] for entry in tree["distribution"]}
    expected = {*read_manifest(release).files} - {"croissant.json"}
    assert {*files} == expected
    assert all(sha256_of(release / name) == digest for name, digest in files.items())
    assert "http://mlcommons.org/croissant/1.1" in tree["conformsTo"]
    assert tree["license"] == "https://spdx.org/licenses/CC-BY-NC-4.0.html"
    assert tree["rai:personalSensitiveInformation"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own libraries
def test_the_official_reader_takes_the_metadata(release: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    dataset = mlcroissant.Dataset(str(release / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    records = list(dataset.records("pairs"))
    assert len(records) == len(read_pairs(release))
