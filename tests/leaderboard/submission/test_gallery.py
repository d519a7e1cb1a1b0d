"""Galleries: the splits of a release and the field's layouts; blind rounds have their own tests."""

import numpy as np
import pytest

from leaderboard.metrics import recalls
from leaderboard.scoring.references import chance_rsum
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import FormatError
from tests.leaderboard.conftest import score_matrix


def _precomp(folder, name, images, each):
    data = folder / name
    data.mkdir(parents=True)
    texts = [f"caption {row % (images * each - 1)}" for row in range(images * each)]
    stem = "testall" if name == "coco_precomp" else "test"
    text = "".join(
        f"http://x.test/{i}.jpg\t{t}\n" if "cc" in name else f"{t}\n" for i, t in enumerate(texts)
    )
    (data / f"{stem}_caps.{'tsv' if 'cc' in name else 'txt'}").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("track", "name", "each"),
    [
        ("flickr30k", "f30k_precomp", 5),
        ("coco", "coco_precomp", 5),
        ("cc152k", "cc152k_precomp", 1),
    ],
)
def test_the_fields_layouts_are_scored_by_owner(tmp_path, track, name, each):
    release, images = _precomp(tmp_path / "data", name, 12, each), 12
    gallery = read_gallery(release, "test", track)
    assert gallery.shape == (images, images * each)
    assert (gallery.owner == np.arange(images * each) // each).all()
    similarity = np.random.default_rng(0).standard_normal(gallery.shape).astype(np.float32)
    result = score_matrix(tmp_path / "x.zip", release, similarity, track=track)
    assert result.rsum == recalls(similarity, gallery.owner).rsum
    assert (result.n_images, result.n_pairs) == gallery.shape
    assert result.release.origin == "field"
    assert result.rsum_interval[0] < result.rsum < result.rsum_interval[1]
    assert result.duplicates.captions == 2  # the last caption is the first one again
    assert result.references["chance"] == chance_rsum(*gallery.shape)


def test_1k_folds_are_scored_with_the_5k_split(tmp_path, monkeypatch):
    monkeypatch.setattr("leaderboard.scoring.within.FOLD", 4)
    release = _precomp(tmp_path / "data", "coco_precomp", 12, 5)
    owner = np.arange(60) // 5
    similarity = np.random.default_rng(0).standard_normal((12, 60)).astype(np.float32)
    folds = score_matrix(tmp_path / "x.zip", release, similarity, track="coco").folds
    expected = [
        recalls(similarity[4 * n : 4 * n + 4, 20 * n : 20 * n + 20], owner[:20]) for n in range(3)
    ]
    assert (folds.size, folds.count) == (4, 3)
    assert folds.i2t.r1 == pytest.approx(np.mean([fold.i2t.recall(1) for fold in expected]))
    assert folds.t2i.r5 == pytest.approx(np.mean([fold.t2i.recall(5) for fold in expected]))
    assert folds.rsum == pytest.approx(np.mean([fold.rsum for fold in expected]))


def test_captions_that_are_no_multiple_of_five_are_named(tmp_path):
    release = _precomp(tmp_path / "data", "f30k_precomp", 2, 5)
    with (release / "f30k_precomp" / "test_caps.txt").open("a") as file:
        file.write("one more\n")
    with pytest.raises(FormatError, match="11 captions, expected 5 for every image"):
        read_gallery(release, "test", "flickr30k")
