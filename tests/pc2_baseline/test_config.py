"""Presets, their sections for data sets, and files of one's own."""

import tomllib
from pathlib import Path

import pytest

import pc2_baseline.config
from now_builder.errors import ConfigError
from pc2_baseline.config import presets, read_settings, sections_of
from pc2_baseline.runs.predict import method_title

LAYOUTS = {"coco": "coco_precomp", "f30k": "f30k_precomp", "cc152k": "cc152k_precomp"}


def test_every_preset_is_valid_with_each_section_and_says_what_it_is():
    for name, about in presets().items():
        assert about.endswith(".")
        file = Path(pc2_baseline.config.__file__).with_name("configs") / f"{name}.toml"
        own = tomllib.loads(file.read_text(encoding="utf-8")).get("on", {})
        sections = sections_of(name)
        assert own.keys() <= sections.keys()
        assert all(sections[on] for on in own), "its comment is beside its head"
        for on in sections:
            assert read_settings(name, [], on).data.name == LAYOUTS.get(on, "now100k_precomp")
        assert read_settings(name, [], "now") == read_settings(name, [])


def test_a_submission_names_its_method_as_papers_do_and_another_network():
    for preset, title in {
        "pc2-paper": "PC2", "pc2-star": "PC2*", "sgr": "SGR", "scan-t2i": "SCAN T2I",
        "pc2-pooled": "PC2, pooled network", "ridge": "Ridge regression",
        "reading": "Words read on the page, ridge regression",
        "pc2-crossfit-pooled": "PC2, cross-fit division, pooled network",
        "sgr-c": "SGR-C (trained on matched pairs alone)",
    }.items():  # fmt: skip
        assert method_title(read_settings(preset, [])) == title
    settings = read_settings("sgr", ["model.similarity=pooled"])
    assert method_title(settings) == "Triplet loss, pooled network"


def test_a_section_is_inherited_and_gives_way_to_the_values_of_the_file_that_extends_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "sgr"\n[method]\nname = "ncr"\n[train]\nseed = 3\nepochs = 7\n'
        "[on.coco.data]\ndev_images = 0\n[on.mine]\n"
    )
    base, own = (read_settings(str(path), ["train.lr=0.1"], on) for on in (None, "coco"))
    assert (base.data.name, base.train.epochs, base.method.name) == ("now100k_precomp", 7, "ncr")
    assert (own.data.name, own.data.dev_images) == ("coco_precomp", 0)
    assert (own.train.seed, own.train.epochs, own.train.lr_drop_epoch) == (3, 7, 10)
    assert own.train.lr == 0.1, "--set comes last"
    assert read_settings(str(path), [], "f30k").train.warmup_epochs == 5
    assert list(sections_of(str(path))) == ["cc152k", "coco", "f30k", "demo", "mine"]


def test_where_the_method_is_changed_settings_that_both_have_are_kept():
    changes = ["method.margin=0.3", "method.name=triplet"]
    changed, pc2 = read_settings(None, changes, "demo"), read_settings(None, [], "demo")
    assert changed.method.name == "triplet"
    assert changed.method.model_dump(exclude_defaults=True) == {
        "name": "triplet", "margin": 0.3, "mean_epochs": pc2.method.mean_epochs,
    }  # fmt: skip
    assert (changed.model, changed.train, changed.data) == (pc2.model, pc2.train, pc2.data)


def test_a_wrong_name_or_file_is_refused_with_the_nearest(tmp_path):
    for config, on, message in (
        (
            "what",
            None,
            "--config what: neither a file nor a preset; `pc2-baseline train --presets` lists",
        ),
        ("pc2-papr", None, "did you mean pc2-paper"),
        (
            "ncr",
            "cocoa",
            "--on cocoa: no such section in ncr, expected .* demo .did you mean coco",
        ),
        ("pc2-released", "coco", "no such section in pc2-released, expected one of now$"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_settings(config, [], on)
    for text, message in (
        ('extends = "pc3"\n', "mine.toml: extends 'pc3', expected a preset .did you mean"),
        ("on = 3\n", r"mine.toml: on is 3, expected sections such as \[on.coco\]"),
        ("[on]\ncoco = 3\n", r"on is {'coco': 3}, expected sections"),
        ("[on.coco.train]\nspeed = 3\n", "mine.toml --on coco: train.speed: no such field"),
    ):
        (tmp_path / "mine.toml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_settings(str(tmp_path / "mine.toml"), [], "coco")
