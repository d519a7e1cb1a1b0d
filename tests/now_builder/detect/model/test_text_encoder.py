"""Text encoders: hashed n-grams, and a transformer loaded from a folder."""

import pytest
import torch

from now_builder.detect.model.text_encoder import HashedNgrams, make_text_encoder
from now_builder.errors import ConfigError


def test_hashed_vectors_are_unit_stable_and_near_for_strings_that_share_characters():
    vectors = HashedNgrams(0).encode(["add to cart", "Add  to cart", "add to basket", "登录", ""])
    assert vectors.shape == (5, 768)
    assert vectors.norm(dim=1).tolist() == pytest.approx([1, 1, 1, 1, 0])
    assert torch.equal(vectors[0], vectors[1])
    assert vectors[0] @ vectors[2] > 0.3 > vectors[0] @ vectors[3]
    again = make_text_encoder("hash").encode(["add to cart"])
    assert torch.equal(again[0], vectors[0])
    assert not torch.equal(make_text_encoder("hash:1").encode(["add to cart"])[0], vectors[0])


def test_a_malformed_or_unreachable_name_is_a_users_mistake(tmp_path):
    with pytest.raises(ConfigError, match="hash:<whole number>"):
        make_text_encoder("hash:abc")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_text_encoder(str(tmp_path / "nothing"))


def _bert(folder, width):
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "buy", "now", "##s", "登", "录"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=64,
        )
    ).save_pretrained(folder)


def test_a_transformer_is_averaged_over_its_own_tokens_only(tmp_path):
    """The vector of a short string does not change when a longer one pads it."""
    _bert(tmp_path, 768)
    encoder = make_text_encoder(str(tmp_path))
    alone = encoder.encode(["buy now"])
    beside = encoder.encode(["buy now", "登 录 buy now buys 登 录", ""])
    assert alone.shape == (1, 768)
    torch.testing.assert_close(beside[0], alone[0], atol=1e-5, rtol=1e-4)
    assert beside.norm(dim=1).tolist() == pytest.approx([1, 1, 0], abs=1e-5)


def test_a_transformer_of_another_width_is_refused(tmp_path):
    _bert(tmp_path, 64)
    with pytest.raises(ConfigError, match="width 64, expected 768"):
        make_text_encoder(str(tmp_path))
