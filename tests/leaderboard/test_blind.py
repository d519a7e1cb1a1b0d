"""Blind rounds: participants do not learn the pairing, and the judge cannot change it."""

import hashlib
import json
import shutil
from dataclasses import replace
from itertools import permutations

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from leaderboard.blind import RoundPlan, close_round, keyed_order, make_round
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.references import chance_rsum
from leaderboard.store.dataset import dataset_report
from leaderboard.store.entries import entry_of
from leaderboard.store.recompute import verify
from leaderboard.submission.archive import new_submission, pack
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import TOKENIZERS, make_vocabulary, write_vocabulary
from now_builder.formats.io import lock_folder
from now_builder.formats.release import (
    DATA_FOLDER,
    read_image_identities,
    read_manifest,
    read_pairs,
    read_split_captions,
)
from now_builder.package.verify import verify as verify_release
from tests.leaderboard.conftest import SECRET, pack_for_round, pairing_of


@pytest.fixture(scope="module")
def source(release, tmp_path_factory):
    """The small release with vocabularies, as `now-builder verify` requires."""
    mine = shutil.copytree(release, tmp_path_factory.mktemp("source") / "release")
    for track in TOKENIZERS:
        words = make_vocabulary(map(str, range(60)), track, "here", "train")
        write_vocabulary(mine / "vocab" / f"{DATA_FOLDER}_vocab_{track}.json", words)
    return mine


@pytest.fixture(scope="module")
def out(source, secret, tmp_path_factory):
    folder = tmp_path_factory.mktemp("blind") / "out"
    make_round(source, folder, RoundPlan(name="May", secret_file=secret, with_train=True))
    return folder


def _truth(out):
    return json.loads((out / "judge" / "blind.json").read_text())


def _noisy(out, strength=2.0, seed=0):
    perfect = pairing_of(out)
    noise = np.random.default_rng(seed).standard_normal(perfect.shape)
    return (noise + strength * perfect).astype(np.float32)


def test_the_pairing_scores_600_and_the_public_order_chance(out, tmp_path):
    perfect = pack_for_round(out, pairing_of(out), tmp_path / "p.zip")
    assert score(perfect, out / "judge").rsum == 600
    by_row = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        noise = 1e-3 * rng.standard_normal((24, 24))
        order = np.arange(24) if seed == 0 else rng.permutation(24)
        x = pack_for_round(out, np.eye(24)[order] + noise, tmp_path / "s.zip")
        by_row.append(score(x, out / "judge").rsum)
    assert by_row[0] < 250, "of the order as published"
    assert np.mean(by_row) == pytest.approx(chance_rsum(24, 24), abs=30)


def test_a_keyed_order_is_uniform_and_independent_of_the_input_order():
    counts = dict.fromkeys(permutations(range(3)), 0)
    for number in range(600):
        counts[tuple(keyed_order(["a", "b", "c"], f"secret {number}", "x"))] += 1
    expected = 600 / 6
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2 < 20.5, "0.1 % of uniform draws"
    keys = [f"k{row}" for row in range(40)]
    order = keyed_order(keys, SECRET, "x")
    turned = keyed_order(keys[::-1], SECRET, "x")
    assert [keys[place] for place in order] == [keys[::-1][place] for place in turned]
    assert order != keyed_order(keys, SECRET, "y")


def test_the_secret_gives_the_same_bytes_again(source, secret, out, tmp_path):
    again = tmp_path / "again"
    make_round(source, again, RoundPlan(name="May", secret_file=secret, with_train=True))
    for path in sorted(out.rglob("*")):
        if path.is_file():
            assert (again / path.relative_to(out)).read_bytes() == path.read_bytes(), path
    other = tmp_path / "other"
    make_round(source, other, RoundPlan(name="May"))
    assert _truth(other)["owner"] != _truth(out)["owner"]
    assert len(_truth(other)["secret"]) == 64


def test_the_participants_release_is_whole_and_agrees_with_the_judges(out, source):
    for half in ("participants", "judge"):
        assert verify_release(out / half) == []
    for track in TOKENIZERS:
        theirs = read_gallery(out / "participants", "test", track, unpaired=True)
        judges = read_gallery(out / "judge", "test", track)
        assert theirs.fingerprint == judges.fingerprint
        assert theirs.image_labels.tolist() == judges.image_labels.tolist()
        assert judges.origin == "blind"
        assert len(set(judges.image_labels)) == 23
        before = read_split_captions(source, "test", track)
        after = read_split_captions(out / "judge", "test", track)
        images = [read_image_identities(folder, "test") for folder in (source, out / "judge")]
        for column, row in enumerate(judges.owner):
            place = before.keys.index(_truth(out)["keys"][row])
            assert after.captions[column] == before.captions[place]
            assert images[1][row] == images[0][place]
    assert read_gallery(out / "participants", "dev", "jieba").origin == "rebuilt"
    assert read_manifest(out / "judge").counts == {"test": 24}


def test_fewer_pairs_can_be_drawn(source, secret, tmp_path):
    made = make_round(source, tmp_path / "few", RoundPlan(20, secret_file=secret))
    assert made.pairs == len(_truth(tmp_path / "few")["owner"]) == 20
    assert verify_release(tmp_path / "few" / "participants") == []


def _contents(folder):
    """All contents of a folder: names, bytes, HDF5 and Parquet cells, metadata."""
    for path in sorted(folder.rglob("*")):
        yield path.relative_to(folder).as_posix()
        if path.is_file():
            yield path.read_bytes().decode("latin-1")
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                yield from map(str, [*file.attrs.values(), *file["keys"].asstr()[:]])
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield str(table.schema.metadata)
            rows = table.to_pylist()
            rows = [row for row in rows if row.get("split") not in ("train", "dev")]
            yield json.dumps(rows)


def test_the_participants_part_does_not_identify_pages(source, out):
    everything = "\n".join(_contents(out / "participants"))
    assert "blind_000023" in everything, "keys of its own"
    for pair in read_pairs(source):
        if pair.split == "test":
            for named in (pair.key, pair.url):
                assert named not in everything, named
    for word in (SECRET, '"owner"', "blind.json\n", "a caption, 23", "site23.test"):
        assert word not in everything, word
    names = {path.name for path in (out / "participants").rglob("*") if path.is_file()}
    assert names.isdisjoint({"blind.json", "croissant.json", "DATASET_CARD.md", "truth.csv"})
    with pq.ParquetFile(out / "participants" / "rejects.parquet") as rejects:
        assert rejects.metadata.num_rows == 0
    manifest = read_manifest(out / "participants")
    assert (manifest.settings, manifest.inputs, manifest.versions) == ({}, {}, {})
    assert (out / "judge").stat().st_mode & 0o777 == 0o700
    assert (out / "judge" / "blind.json").stat().st_mode & 0o777 == 0o600
    with h5py.File(out / "participants" / DATA_FOLDER / "test.h5") as file:
        assert {h5py.h5g.get_objinfo(file[name].id).mtime for name in file} == {0}


def test_the_participants_part_packs_and_checks_but_never_scores(out, tmp_path, now_leaderboard):
    x, half = tmp_path / "x.zip", out / "participants"
    np.save(tmp_path / "s.npy", _noisy(out))
    naming = ["--release", half, "--track", "jieba", "--method", "Mine"]
    assert now_leaderboard("pack", tmp_path / "s.npy", "-o", x, *naming)[0] == 0
    assert now_leaderboard("score", "--check", x, "--release", half)[0] == 0
    for command in (["score"], ["submit", "--store", tmp_path / "store"]):
        code, text, errors = now_leaderboard(*command, x, "--release", half)
        assert (code, text) == (1, "")
        assert "blind round 'May', whose pairing only its judge has" in errors
        assert errors.count("\n") == 1
    code, text, _ = now_leaderboard("score", x, "--release", out / "judge")
    assert (code, "recalls in steps of 10, rSum of 50" in text) == (0, True)


def test_dev_of_a_round_with_train_is_scored_as_usual(out, tmp_path):
    half = out / "participants"
    pack(tmp_path / "d.zip", np.eye(12, dtype=np.float32), new_submission(half, "bpe", "dev", "M"))
    result = score(tmp_path / "d.zip", half)
    assert (result.release.origin, result.ranks is not None) == ("rebuilt", True)
    assert "lang" in result.references


def test_a_blind_result_contains_only_rounded_aggregates(out, tmp_path):
    result = score(pack_for_round(out, _noisy(out), tmp_path / "x.zip"), out / "judge")
    assert (result.release.origin, result.ranks) == ("blind", None)
    assert set(result.references) == {"chance"}
    assert entry_of(result).evidence == "scored", "a file outside a store is a claim"
    tree = json.loads(result.to_json())
    for way in ("i2t", "t2i"):
        assert tree[way]["hits"] == {}
        assert tree[way]["nDCG@10"] is None
        assert {tree[way][name] for name in ("medR", "meanR", "MRR", "tied_queries")} == {None}
        assert all(tree[way][name] % 10 == 0 for name in ("R@1", "R@5", "R@10"))
    assert result.rsum % 50 == result.rsum_interval[0] % 50 == result.rsum_argsort % 50 == 0
    assert result.references["chance"] == round(chance_rsum(24, 24), 1)
    assert verify(tmp_path / "r.json", result, tmp_path / "x.zip", out / "judge") == []
    with pytest.raises(FormatError, match="no ranks, as in results"):
        verify(tmp_path / "r.json", result)


def test_ties_of_prime_widths_do_not_reveal_the_pairing(out, tmp_path):
    """Exact fractions would: only the hit in a tie of p adds 1 / p."""
    widths = [2, 3, 5, 7, 11, 13, 17, 19]
    for shift in range(4):
        matrix = np.random.default_rng(0).random((24, 24)) * 1e-3
        for row, width in enumerate(widths):
            matrix[row, (np.arange(width) + shift) % 24] = 1
        result = score(pack_for_round(out, matrix, tmp_path / "t.zip"), out / "judge")
        tree = json.loads(result.to_json())
        assert "/" not in json.dumps([tree["i2t"]["hits"], tree["t2i"]["hits"]])
        for way in ("i2t", "t2i"):
            assert all(tree[way][name] % 10 == 0 for name in ("R@1", "R@5", "R@10"))
        assert tree["reason"] == "ties decide more than 5 rSum points"


def test_after_the_round_anyone_scores_again_with_ranks(source, secret, tmp_path, now_leaderboard):
    out = tmp_path / "out"
    code, text, _ = now_leaderboard("blind", "make", source, out, "--secret-file", secret)
    assert code == 0
    x = pack_for_round(out, _noisy(out), tmp_path / "x.zip")
    blind = score(x, out / "judge")
    assert now_leaderboard("blind", "close", out)[0] == 0
    commitment = hashlib.sha256((out / "closed" / "blind.json").read_bytes()).hexdigest()
    assert commitment in text
    assert commitment == json.loads((out / "participants" / "round.json").read_text())["commitment"]
    result = score(x, out / "closed")
    assert result.ranks is not None
    assert result.release.origin == "closed"
    assert entry_of(result).evidence == "scored", "now that the pairing is known"
    assert abs(result.rsum - blind.rsum) <= 25 != result.rsum % 50
    assert result.release.fingerprint == blind.release.fingerprint
    assert verify(tmp_path / "r.json", result) == []
    assert verify_release(out / "closed") == []
    late = score(x, out / "judge")
    assert late.release.origin == "closed"
    assert entry_of(late).evidence == "scored", "anyone may have read the pairing by now"
    first = (out / "closed" / "blind.json").read_bytes()
    assert close_round(out) == out / "closed", "twice is no harm"
    assert (out / "closed" / "blind.json").read_bytes() == first


def test_a_pairing_changed_afterwards_is_found(source, secret, tmp_path):
    out = tmp_path / "out"
    make_round(source, out, RoundPlan(secret_file=secret))
    x = pack_for_round(out, _noisy(out), tmp_path / "x.zip")
    path, sealed, tree = out / "judge" / "blind.json", out / "judge" / "round.json", _truth(out)

    def commit():
        """Change the commitment in the judge's folder, but not in the participants'."""
        record = json.loads(sealed.read_text())
        record["commitment"] = hashlib.sha256(path.read_bytes()).hexdigest()
        sealed.write_text(json.dumps(record))

    tree["owner"][:2] = tree["owner"][1::-1]
    path.write_text(json.dumps(tree))
    for attempt in (lambda: score(x, out / "judge"), lambda: close_round(out)):
        with pytest.raises(FormatError, match=r"not the pairing that round\.json commits to"):
            attempt()
    commit()
    with pytest.raises(FormatError, match="commits to"):
        close_round(out)
    tree["owner"][0] = tree["owner"][1]
    path.write_text(json.dumps(tree))
    commit()
    with pytest.raises(FormatError, match="each of the rows 0 to 23 once"):
        read_gallery(out / "judge", "test", "jieba")
    sealed.unlink()
    with pytest.raises(FormatError, match=r"round\.json: file not found next to blind\.json"):
        read_gallery(out / "judge", "test", "jieba")


def test_invalid_sources_of_a_round_are_refused(source, archive, out, secret, tmp_path):
    plan = RoundPlan(secret_file=secret)
    with pytest.raises(FormatError, match="the authors' archive, whose pairing is public"):
        make_round(archive, tmp_path / "a", plan)
    with pytest.raises(FormatError, match="the release that it was drawn from"):
        dataset_report(out / "judge")
    with pytest.raises(FormatError, match="a blind round; expected"):
        make_round(out / "participants", tmp_path / "a", plan)
    for wanted in (19, 25):
        with pytest.raises(ConfigError, match=f"found {wanted} pairs"):
            make_round(source, tmp_path / "a", RoundPlan(wanted, secret_file=secret))
    with pytest.raises(ConfigError, match="never overwritten"):
        make_round(source, out, plan)
    refused = pytest.raises(ConfigError, match="a: another command is writing in this folder")
    with lock_folder(tmp_path / "a"), refused:
        make_round(source, tmp_path / "a", plan)
    for name in ("", "x" * 81):
        with pytest.raises(ConfigError, match=r"round: expected at (least 1|most 80) character"):
            make_round(source, tmp_path / "a", replace(plan, name=name))
    short = tmp_path / "short"
    short.write_text("a" * 31 + "\n")
    with pytest.raises(ConfigError, match="31 characters, expected 32 or more"):
        make_round(source, tmp_path / "a", RoundPlan(secret_file=short))
    with pytest.raises(ConfigError, match="not a readable text"):
        make_round(source, tmp_path / "a", RoundPlan(secret_file=tmp_path / "none"))
    with pytest.raises(FormatError, match=r"participants/round\.json or .* is missing"):
        close_round(tmp_path)
    assert not (tmp_path / "a").exists()
