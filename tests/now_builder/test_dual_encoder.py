"""Dual encoders of `transformers`: small ones with random weights, loaded from folders."""

import json
import shutil

import pytest
import torch
import transformers
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

from now_builder.dual_encoder import DualEncoder, _vectors, find_encoder, hash_of_encoder
from now_builder.errors import ConfigError

CPU = torch.device("cpu")
WORDS = ["news", "cats", "and", "dogs", "weather", *"今天气猫"]
TEXTS = [
    "News", "cats and dogs", "今天天气", "dogs and unheard of things 猫", "weather " * 20, "猫",
    "cats and dogs and cats and dogs and news", "",
]  # fmt: skip
KINDS = ("clip", "siglip", "siglip2", "chinese_clip", "alt_clip", "vision_text")
SCALE, BIAS = 1.3, -2.5


@pytest.fixture(scope="module")
def folder(encoders, tmp_path_factory):
    """The function that writes a model of a kind into a folder, once."""
    root = tmp_path_factory.mktemp("encoders")

    def saved(kind):
        if not (root / kind).exists():
            encoders.save(getattr(encoders, kind), root / kind, WORDS)
            state = load_file(root / kind / "model.safetensors")
            state["logit_scale"].fill_(SCALE)
            if "logit_bias" in state:
                state["logit_bias"].fill_(BIAS)
            save_file(state, root / kind / "model.safetensors", {"format": "pt"})
        return root / kind

    return saved


@pytest.fixture(scope="module")
def pictures():
    return [picture(number) for number in range(5)]


def picture(number, size=(72, 128)):
    drawn = Image.new("RGB", size, (40 * number, 200 - 30 * number, 90))
    ImageDraw.Draw(drawn).rectangle((5, 4 + 7 * number, 40, 60 + 9 * number), fill="white")
    ImageDraw.Draw(drawn).ellipse((9 * number, 80, 9 * number + 20, 120), fill="black")
    return drawn


def by_the_model_itself(folder, pictures, texts):
    """Logits of each picture with each text, one pair at a time, by a forward pass of the model."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    full = "siglip" in model.config.model_type
    logits = torch.zeros(len(pictures), len(texts))
    for column, text in enumerate(texts):
        tokens = processor.tokenizer(
            [text], padding="max_length" if full else True, truncation=True, max_length=12,
            return_tensors="pt",
        )  # fmt: skip
        if full:
            del tokens["attention_mask"]
        for row, picture in enumerate(pictures):
            pixels = processor.image_processor(images=[picture], return_tensors="pt")
            with torch.inference_mode():
                logits[row, column] = model(**tokens, **pixels).logits_per_image
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_logits_of_the_model_itself(folder, pictures, kind):
    encoder = DualEncoder(str(folder(kind)), CPU)
    scores = encoder.scale * encoder.images(pictures) @ encoder.texts(TEXTS).T + encoder.bias
    expected = by_the_model_itself(folder(kind), pictures, TEXTS)
    assert expected.std(dim=0).min() > 1e-3, "pictures are told apart"
    torch.testing.assert_close(scores, expected, atol=2e-5, rtol=1e-5)
    assert encoder.scale == pytest.approx(torch.tensor(SCALE).exp())
    assert encoder.bias == (BIAS if kind.startswith("siglip") else 0)
    # Batches change no vector.
    one = torch.cat([encoder.images([picture]) for picture in pictures])
    torch.testing.assert_close(encoder.images(pictures), one, atol=2e-6, rtol=0)
    one = torch.cat([encoder.texts([text]) for text in TEXTS])
    torch.testing.assert_close(encoder.texts(TEXTS), one, atol=2e-6, rtol=0)
    torch.testing.assert_close(one.norm(dim=1), torch.ones(len(TEXTS)))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_cut_to_what_the_tower_takes(folder, kind):
    encoder = DualEncoder(str(folder(kind)), CPU)
    assert encoder.text_limit == 12
    shown = [" ".join(["cats", "and"] * count) for count in (1, 40, 50)]
    found = encoder.texts(shown)
    torch.testing.assert_close(found[1], found[2], atol=2e-6, rtol=0)
    assert (found[0] - found[1]).abs().max() > 1e-4


def test_texts_have_a_maximum_where_the_model_sets_none(folder, monkeypatch):
    monkeypatch.setattr("now_builder.dual_encoder._NO_LIMIT", 5)
    encoder = DualEncoder(str(folder("clip")), CPU)
    assert encoder.text_limit == 512
    assert encoder.texts(["cats"]).isfinite().all()


def test_tokens_are_counted_before_they_are_cut(folder):
    encoder = DualEncoder(str(folder("clip")), CPU)
    assert encoder.count_tokens(["", "cats", "cats and dogs", "cats " * 30]) == [2, 3, 5, 32]


def test_squeezed_pictures_are_seen_whole_where_the_processor_crops(folder):
    encoder = DualEncoder(str(folder("clip")), CPU)
    plain, marked = picture(0), picture(0)
    ImageDraw.Draw(marked).rectangle((0, 0, 72, 20), fill="red")  # above the middle square
    cropped, whole = (encoder.images([plain, marked], squeeze=how) for how in (False, True))
    assert torch.equal(cropped[0], cropped[1])
    assert (whole[0] - whole[1]).abs().max() > 1e-3
    square = plain.resize((128, 128), Image.Resampling.BICUBIC)
    assert torch.equal(encoder.images([plain], squeeze=True), encoder.images([square]))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_near(folder, pictures, kind, precision):
    whole = DualEncoder(str(folder(kind)), CPU)
    half = DualEncoder(str(folder(kind)), CPU, precision)
    for found, expected in (
        (half.images(pictures), whole.images(pictures)),
        (half.texts(TEXTS), whole.texts(TEXTS)),
    ):
        assert found.dtype == torch.float32
        assert (found * expected).sum(dim=1).min() > 0.99


def test_a_model_is_known_by_what_its_vectors_depend_on_and_by_its_commit(folder, tmp_path):
    commit = "0123456789" * 4
    moved = shutil.copytree(folder("clip"), tmp_path / commit)
    (moved / "README.md").write_text("words")
    assert hash_of_encoder(moved) == hash_of_encoder(folder("clip"))
    assert DualEncoder(str(moved), CPU).revision == commit
    assert DualEncoder(str(folder("clip")), CPU).revision is None
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
    found, expected = DualEncoder(str(pickled), CPU), DualEncoder(str(folder("clip")), CPU)
    assert torch.equal(found.images(pictures), expected.images(pictures))

    class Harm:
        def __reduce__(self):
            return (tmp_path.joinpath("harm").write_text, ("done",))

    torch.save({"logit_scale": Harm()}, pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="a pickle of more than tensors"):
        DualEncoder(str(pickled), CPU)
    assert not (tmp_path / "harm").exists()


def headless(folder):
    state = load_file(folder / "model.safetensors")
    del state["visual_projection.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def infinite(folder):
    state = load_file(folder / "model.safetensors")
    state["text_projection.weight"][0, 0] = float("inf")
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
        (without("config.json"), "config.json is missing"),
        (without("model.safetensors"), "model.safetensors is missing"),
        (torn, "clip"),
        (headless, "1 parameters missing: .'visual_projection.weight'"),
        (infinite, "get_text_features is not finite"),
        (without("tokenizer.json"), "tokenizer"),
        (without("processor_config.json"), "processor"),
        (own_code, "custom code"),
        (another_kind, "bert is no dual encoder: it has no get_image_features"),
    ],
)
def test_what_is_no_dual_encoder_is_refused_in_one_line(folder, tmp_path, spoil, problem):
    broken = shutil.copytree(folder("clip"), tmp_path / "clip")
    spoil(broken)
    with pytest.raises(ConfigError, match=problem) as caught:
        DualEncoder(str(broken), CPU).texts(["news"])
    assert str(caught.value).startswith("model ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no such name at all!", "/no/such/folder", "", "now/none"])
def test_a_name_that_cannot_be_had_is_refused_with_what_to_do(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    advice = rf"`hf download {name or 'NAME'}` brings all of it .*neither a folder nor a name"
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
    encoder = DualEncoder("now/clip", CPU, revision="main")
    assert asked == [("now/clip", "main", ["*.json", "*.txt", "*.model", "*.safetensors"])]
    assert (encoder.name, encoder.on_hub) == ("now/clip", True)


def test_without_transformers_it_is_said_what_to_install(folder, monkeypatch):
    monkeypatch.setattr("now_builder.dual_encoder.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"transformers is missing; .*noise-of-web\[zero-shot\]"):
        DualEncoder(str(folder("clip")), CPU)


def test_a_model_without_one_vector_for_each_is_named():
    for output in (object(), torch.zeros(2, 3, 4)):
        with pytest.raises(ConfigError, match=r"model 'odd': .*returns no single vector for each"):
            _vectors("odd", output)
