"""Dual encoders of `transformers`: small ones with random weights, loaded from folders."""

import json
import shutil

import pytest
import torch
import transformers
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

from now_builder.dual_encoder import (
    DualTowers,
    EncoderInputs,
    PictureEncoder,
    _vectors,
    find_encoder,
    hash_of_encoder,
    squared,
)
from now_builder.errors import ConfigError

CPU = torch.device("cpu")
WORDS = ["news", "cats", "and", "dogs", "weather", *"今天气猫"]
TEXTS = [
    "News", "cats and dogs", "今天天气", "dogs and unheard of things 猫", "weather " * 20, "猫",
    "cats and dogs and cats and dogs and news", "",
]  # fmt: skip
KINDS = ("clip", "siglip", "chinese_clip", "vision_text")


@pytest.fixture(scope="module")
def folder(encoders, tmp_path_factory):
    """The function that writes a model of a kind into a folder, once."""
    root = tmp_path_factory.mktemp("encoders")

    def saved(kind):
        if not (root / kind).exists():
            encoders.save(getattr(encoders, kind), root / kind, WORDS)
        return root / kind

    return saved


@pytest.fixture(scope="module")
def pictures():
    return [squared(picture(number)) for number in range(5)]


def picture(number, size=(72, 128)):
    drawn = Image.new("RGB", size, (40 * number, 200 - 30 * number, 90))
    ImageDraw.Draw(drawn).rectangle((5, 4 + 7 * number, 40, 60 + 9 * number), fill="white")
    ImageDraw.Draw(drawn).ellipse((9 * number, 80, 9 * number + 20, 120), fill="black")
    return drawn


def texts_of(folder, texts):
    """Unit vectors of texts by the towers, from ids in batches of mixed lengths."""
    inputs = EncoderInputs(str(folder))
    ids = [torch.tensor(own) for own in inputs.tokens(texts)]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=7)
    with torch.inference_mode():
        found = DualTowers(inputs).eval().texts(tokens, torch.tensor([len(own) for own in ids]))
    return torch.nn.functional.normalize(found, dim=1)


def by_the_model_itself(folder, pictures, texts):
    """Cosines of each picture with each text, one at a time, by the model's own forward pass."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    full, sides = "siglip" in model.config.model_type, []
    with torch.inference_mode():
        pixels = [processor.image_processor([one], return_tensors="pt") for one in pictures]
        sides.append([model.get_image_features(**own).pooler_output for own in pixels])
        tokens = [
            processor.tokenizer(
                [text], padding="max_length" if full else True, truncation=True, max_length=12,
                return_tensors="pt",
            )
            for text in texts
        ]  # fmt: skip
        for own in tokens if full else ():
            del own["attention_mask"]
        sides.append([model.get_text_features(**own).pooler_output for own in tokens])
    images, captions = (torch.nn.functional.normalize(torch.cat(side), dim=1) for side in sides)
    return images @ captions.T


@pytest.mark.parametrize("kind", KINDS)
def test_cosines_are_those_of_the_model_itself(folder, pictures, kind):
    encoder = PictureEncoder(str(folder(kind)), CPU)
    assert encoder.text_limit == 12
    images, texts = encoder.images(pictures), texts_of(folder(kind), TEXTS)
    expected = by_the_model_itself(folder(kind), pictures, TEXTS)
    assert expected.std(dim=0).min() > 1e-3, "pictures are told apart"
    torch.testing.assert_close(images @ texts.T, expected, atol=2e-5, rtol=1e-5)
    assert encoder.width == images.shape[1]
    # Batches change no vector, and what is behind the limit changes none.
    one = torch.cat([encoder.images([picture]) for picture in pictures])
    torch.testing.assert_close(images, one, atol=2e-6, rtol=0)
    found = texts_of(folder(kind), [" ".join(["cats", "and"] * n) for n in (1, 40, 50)])
    torch.testing.assert_close(found[1], found[2], atol=2e-6, rtol=0)
    assert (found[0] - found[1]).abs().max() > 1e-4


def test_pictures_are_seen_whole_where_the_processor_crops(folder):
    encoder = PictureEncoder(str(folder("clip")), CPU)
    plain, marked = picture(0), picture(0)
    ImageDraw.Draw(marked).rectangle((0, 0, 72, 20), fill="red")  # above the middle square
    found = encoder.images([plain, marked])
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_a_model_is_known_by_what_its_vectors_depend_on_and_by_its_commit(folder, tmp_path):
    commit = "0123456789" * 4
    moved = shutil.copytree(folder("clip"), tmp_path / commit)
    (moved / "README.md").write_text("words")
    assert hash_of_encoder(moved) == hash_of_encoder(folder("clip"))
    tokens = json.loads((moved / "tokenizer.json").read_text())
    tokens["normalizer"]["lowercase"] = False
    (moved / "tokenizer.json").write_text(json.dumps(tokens))
    assert hash_of_encoder(moved) != hash_of_encoder(folder("clip"))


def test_pickled_weights_are_read_where_there_are_no_others_but_run_no_code(
    folder, pictures, tmp_path
):
    pickled = shutil.copytree(folder("clip"), tmp_path / "pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    found, expected = PictureEncoder(str(pickled), CPU), PictureEncoder(str(folder("clip")), CPU)
    assert torch.equal(found.images(pictures), expected.images(pictures))

    class Harm:
        def __reduce__(self):
            return (tmp_path.joinpath("harm").write_text, ("done",))

    torch.save({"logit_scale": Harm()}, pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="a pickle with other objects than tensors"):
        PictureEncoder(str(pickled), CPU)
    assert not (tmp_path / "harm").exists()


def headless(folder):
    state = load_file(folder / "model.safetensors")
    del state["visual_projection.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def infinite(folder):
    state = load_file(folder / "model.safetensors")
    state["visual_projection.weight"][0, 0] = float("inf")
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def own_code(folder):
    tree = json.loads((folder / "config.json").read_text())
    tree |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps(tree))


def another_kind(folder):
    transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    ).save_pretrained(folder)  # fmt: skip


def torn(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:100])


def without(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.filterwarnings("ignore")  # of transformers, about what is wrong with the model
@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (without("config.json"), "config.json"),
        (without("model.safetensors"), "model.safetensors is missing"),
        (torn, "clip"),
        (headless, "1 parameters missing: .'visual_projection.weight'"),
        (infinite, "vectors are not finite"),
        (without("tokenizer.json"), "tokenizer"),
        (without("processor_config.json"), "processor"),
        (own_code, "custom code"),
        (another_kind, "model .*clip"),
    ],
)
def test_what_is_no_dual_encoder_is_refused_in_one_line(folder, tmp_path, spoil, problem):
    broken = shutil.copytree(folder("clip"), tmp_path / "clip")
    spoil(broken)
    with pytest.raises(ConfigError, match=problem) as caught:
        PictureEncoder(str(broken), CPU).images([picture(0)])
    assert str(caught.value).startswith("model ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no such name at all!", "/no/such/folder", "", "now/none"])
def test_a_name_that_cannot_be_had_is_refused_with_what_to_do(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    advice = rf"run `hf download {name or 'NAME'}` .*neither a folder nor a name"
    with pytest.raises(ConfigError, match=advice) as caught:
        find_encoder(name)
    assert "\n" not in str(caught.value)


def test_a_model_of_the_hub_is_downloaded_without_its_pickle_where_there_are_safetensors(
    folder, tmp_path, monkeypatch
):
    whole, cache, asked = folder("clip"), tmp_path / "cache", []
    cache.mkdir()

    def download(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        for pattern in allow_patterns:
            for file in whole.glob(pattern):
                shutil.copy(file, cache)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_encoder("now/clip") == cache
    assert asked == [("now/clip", None, ["*.json", "*.txt", "*.model", "*.safetensors"])]


def test_a_model_without_one_vector_for_each_is_named():
    for output in (object(), torch.zeros(2, 3, 4)):
        with pytest.raises(
            ConfigError, match=r"model 'odd': .*does not return one vector per input"
        ):
            _vectors("odd", output)
