"""Late interaction by models of transformers with small random weights."""

import pytest
import torch
import transformers
from PIL import Image, ImageDraw

from now_builder.errors import ConfigError
from now_builder.multi_vector import MultiVectorEncoder, has_many_vectors, max_sim

CPU = torch.device("cpu")
KINDS = ("colpali", "colqwen2")
TEXTS = ["red cats", "news", "dogs and cats and red news and music"]
WORDS = ["red", "cats", "news", "dogs", "and", "music", "question", "query", ":"]


@pytest.fixture(scope="module")
def folder(encoders, tmp_path_factory):
    root, made = tmp_path_factory.mktemp("models"), {}

    def get(kind):
        if kind not in made:
            made[kind] = encoders.save(getattr(encoders, kind), root / kind, WORDS)
        return str(made[kind])

    return get


def picture(number, size=(72, 128)):
    drawn = Image.new("RGB", size, (40 * number, 200 - 50 * number, 90))
    pen = ImageDraw.Draw(drawn)
    pen.rectangle((5 + 9 * number, 8, 50, 40 + 20 * number), fill="white")
    return drawn


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_model_itself(folder, kind):
    encoder = MultiVectorEncoder(folder(kind), CPU)
    pictures = [picture(number) for number in range(4)]
    model = transformers.AutoModelForPreTraining.from_pretrained(folder(kind)).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder(kind))
    shown = dict(processor.process_images(images=pictures))
    shown.pop("labels", None)
    with torch.inference_mode():
        passages = model(**shown).embeddings
        queries = model(**processor.process_queries(text=TEXTS)).embeddings
    expected = processor.score_retrieval(queries, passages).T
    found = encoder.scores(encoder.images(pictures), encoder.texts(TEXTS))
    assert found.shape == (4, 3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert expected.std(0).min() > 1e-4, "pictures are told apart"


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_beside_it_in_a_batch_changes_no_score(folder, kind):
    """Padding of texts on either side, and of pictures of another size."""
    encoder = MultiVectorEncoder(folder(kind), CPU)
    pictures = [picture(0), picture(1, (128, 60)), picture(2, (90, 90))]
    together = encoder.scores(encoder.images(pictures), encoder.texts(TEXTS))
    for row, shown in enumerate(pictures):
        for column, text in enumerate(TEXTS):
            alone = encoder.scores(encoder.images([shown]), encoder.texts([text]))
            torch.testing.assert_close(alone[0, 0], together[row, column], atol=1e-5, rtol=1e-5)


def test_the_nearest_place_of_each_word_is_added_up_and_padding_is_none():
    images, captions = torch.randn(3, 5, 4), torch.randn(2, 6, 4)
    images[1, 3:], captions[0, :2] = 0, 0
    images[1, :3] = -captions[1, 0].abs() * captions[1, 0].sign()  # all products are negative
    expected = torch.zeros(3, 2)
    for i, places in enumerate(images):
        for j, words in enumerate(captions):
            for word in words[words.any(1)]:
                expected[i, j] += max(float(place @ word) for place in places[places.any(1)])
    torch.testing.assert_close(max_sim(images, captions), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_counted_and_cut_before_the_prompt(folder, kind, monkeypatch):
    encoder = MultiVectorEncoder(folder(kind), CPU)
    monkeypatch.setattr(encoder, "text_limit", 3)
    assert encoder.count_tokens(["", "red cats", "red cats and dogs"]) == [0, 2, 4]
    found = encoder.texts(["red cats and dogs", "red cats and"])
    torch.testing.assert_close(found[0], found[1])


def test_squeezed_pictures_are_seen_as_squares(folder):
    encoder = MultiVectorEncoder(folder("colqwen2"), CPU)
    tall = picture(0)
    found = encoder.images([tall], squeeze=True)
    torch.testing.assert_close(found, encoder.images([tall.resize((128, 128), 3)]))
    assert encoder.images([tall]).shape != found.shape


def test_kinds_are_told_apart_and_others_refused(folder, encoders, tmp_path):
    clip = str(encoders.save(encoders.clip, tmp_path / "clip", WORDS))
    assert [has_many_vectors(name) for name in (folder("colpali"), folder("colqwen2"), clip)] == [
        True, True, False,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="its processor prepares no queries"):
        MultiVectorEncoder(clip, CPU)
    with pytest.raises(ConfigError, match="neither a folder nor a name"):
        has_many_vectors(str(tmp_path / "none"))


def test_vectors_that_are_not_finite_are_refused(folder):
    encoder = MultiVectorEncoder(folder("colpali"), CPU)
    encoder.network.embedding_proj_layer.bias.data.fill_(float("nan"))
    with pytest.raises(ConfigError, match=r"vectors not finite in torch\.float32"):
        encoder.texts(["red"])
