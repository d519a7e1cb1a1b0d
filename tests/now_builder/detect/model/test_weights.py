"""The weights that come with the package."""

import shutil
from pathlib import Path

import torch

from now_builder.detect.labels.mapping import DEFAULT
from now_builder.detect.model.apt import TINY
from now_builder.detect.model.text_encoder import make_text_encoder
from now_builder.detect.model.weights import (
    SHIPPED,
    card_path,
    find_weights,
    load_detector,
    read_card,
)
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.regions.loading import attributes_of, resolve_settings
from now_builder.detect.settings import DetectSettings
from now_builder.detect.training.data import Screenshots
from now_builder.detect.training.measure import find, measure


def test_they_are_small_of_this_architecture_and_say_what_they_are():
    weights = find_weights(None)
    assert weights.stat().st_size < 12e6
    card = read_card(weights)
    assert card.model == TINY.model_copy(update={"words": True})
    assert card.classes == list(DEFAULT.class_names)
    assert card.text_encoder == "hash:0"
    assert card.trained_on["sites"] > 100
    assert card.words["measured"]["right letter, all"] > 0.7


def test_they_find_elements_of_pages_that_nobody_showed_them(train_pages):
    model, card = load_detector(find_weights(None), torch.device("cpu"))
    extractor = AptExtractor(model, make_text_encoder(card.text_encoder), {})
    pages = train_pages.learn[:6]
    regions = find(extractor, pages, Screenshots((360, 640), 0, 1))
    found = measure(regions, card.classes)
    assert found.recall36 > 0.5


def test_detect_takes_them_by_name_and_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = [None, Path(SHIPPED)]
    settings = [resolve_settings(DetectSettings(weights=name, device="cpu")) for name in named]
    default, by_name = map(attributes_of, settings)
    assert default == by_name
    assert default["weights_sha256"] == read_card(find_weights(None)).weights_sha256


def test_a_file_of_their_name_goes_first(weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(weights, SHIPPED)
    for name in (SHIPPED, "tiny", "tiny-web.safetensors"):
        assert find_weights(Path(name)) == Path(name)
    shutil.copy(card_path(weights), f"{SHIPPED}.json")
    assert read_card(Path(SHIPPED)).trained_on == read_card(weights).trained_on
