"""The planted release: what is drawn is what is written, and retrieval by it is possible."""

import re

import numpy as np
import pandas as pd
import pytest

from leaderboard.metrics import recalls
from now_builder.config import build
from now_builder.errors import ConfigError
from now_builder.formats.release import open_regions, read_manifest, read_split_captions
from now_builder.package.verify import unlisted_files, verify
from pc2_baseline.config import Plan
from pc2_baseline.data.planted import plant

SMALL = {"train": 40, "dev": 6, "test": 30, "topics": 3, "vocabulary": 12}


@pytest.fixture(scope="module")
def plan():
    return Plan(**SMALL, mismatch=0.5, clutter=0.2, noise=0.5)


@pytest.fixture(scope="module")
def release(plan, tmp_path_factory):
    return plant(tmp_path_factory.mktemp("planted") / "release", plan)


@pytest.fixture(scope="module")
def truth(release):
    return pd.read_csv(release / "truth.csv").set_index("key")


def named(release, split, plan):
    """The concepts that each caption names, by key."""
    captions = read_split_captions(release, split, "jieba")
    return {
        key: {(token - 4) // plan.words for token in ids}
        for key, ids in zip(captions.keys, captions.captions, strict=True)
    }


def concepts_of(truth, key):
    return {int(concept) for concept in truth.concepts[key].split()}


def test_half_of_the_training_captions_are_another_pages_and_no_others(release, truth, plan):
    train = truth[truth.index.str.startswith("train")]
    assert (~train.matched).sum() == plan.train / 2
    assert truth.matched[~truth.index.isin(train.index)].all()
    assert (train.matched == (train.caption_of == train.index)).all()
    assert sorted(train.caption_of) == sorted(train.index)


def test_a_caption_names_the_topic_and_every_detail_of_its_page(release, truth, plan):
    for split in ("train", "test"):
        for key, concepts in named(release, split, plan).items():
            own = concepts_of(truth, truth.caption_of[key])
            assert len(own) == 1 + plan.details
            assert own <= concepts


def test_regions_show_what_the_page_is_about(release, truth, plan):
    """Nearest of the regions' means by concept finds a page's own concepts again."""
    keys = read_split_captions(release, "test", "jieba").keys
    with open_regions(release, "test") as regions:
        shown = regions[:]
    own = np.zeros((len(keys), plan.concepts))
    for row, key in enumerate(keys):
        own[row, list(concepts_of(truth, key))] = 1
    pictures = np.linalg.lstsq(own, shown.mean(1), rcond=None)[0]
    affinity = np.einsum("prd,cd->prc", shown, pictures).max(1)
    said = np.zeros_like(own)
    for row, concepts in enumerate(named(release, "test", plan).values()):
        said[row, list(concepts)] = 1
    rsum = recalls((affinity - affinity.mean(0)) @ said.T).rsum
    assert rsum > 400  # by chance about 107


def test_the_same_plan_gives_the_same_bytes_and_may_be_planted_again(release, plan, tmp_path):
    names = sorted(path.relative_to(release) for path in release.rglob("*") if path.is_file())
    torn = tmp_path / "other" / ".planted.toml.1.999999999.tmp"  # as a kill leaves it
    for path in (torn, torn.parent / "now100k_precomp" / torn.name):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        other = plant(torn.parent, plan)
    assert [(other / name).read_bytes() == (release / name).read_bytes() for name in names] == [
        True
    ] * len(names)
    assert read_manifest(other).settings == plan.model_dump()
    assert (verify(other), unlisted_files(other)) == ([], [])


def test_a_folder_that_holds_something_else_is_left_alone(release, plan, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(f"{release}: contains a release of another")):
        plant(release, plan.model_copy(update={"seed": 1}))
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a planted release"):
        plant(tmp_path, plan)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_plan_that_cannot_be_is_named():
    for fields, problem in (
        ({"details": 13}, "details 13, expected vocabulary = 12 at most"),
        ({"tokens": 3}, "tokens 3, expected 4 or more"),
        ({"mismatch": 1.5}, "mismatch: expected less than or equal to 1"),
    ):
        with pytest.raises(ConfigError, match=re.escape(problem)):
            build(Plan, SMALL | fields, "plant")
