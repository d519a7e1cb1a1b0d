"""Dual encoders of a few thousand random weights, with tokenizers and processors, in folders."""

import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

SIDE = 32
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
PAD, _, START, END = range(4)
_LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
_VISION = {"hidden_size": 16, "image_size": SIDE, "patch_size": 8, **_LAYERS}
_SQUARE = {"height": SIDE, "width": SIDE}


def tokenizer(words, limit):
    """Words, or characters where they are Chinese, between marks of beginning and end."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *words])}
    own = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    own.normalizer = normalizers.BertNormalizer(lowercase=True)
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="<pad>", unk_token="<unk>", bos_token="<s>",
        eos_token="</s>", model_max_length=limit,
    )  # fmt: skip


def clip(words):
    text = {
        "vocab_size": len(SPECIAL) + len(words), "hidden_size": 16, "max_position_embeddings": 12,
        "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD, **_LAYERS,
    }  # fmt: skip
    model = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=20)
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    return model, transformers.CLIPProcessor(images, tokenizer(words, 12))


def _siglip_text(words):
    return {
        "vocab_size": len(SPECIAL) + len(words), "hidden_size": 16, "max_position_embeddings": 12,
        "projection_size": 16, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD,
        **_LAYERS,
    }  # fmt: skip


def siglip(words):
    config = transformers.SiglipConfig(text_config=_siglip_text(words), vision_config=_VISION)
    images = transformers.SiglipImageProcessor(size=_SQUARE)
    model, own = transformers.SiglipModel(config), tokenizer(words, 12)
    own.model_input_names = ["input_ids"]  # as SigLIP's: no mask
    return model, transformers.SiglipProcessor(images, own)


def chinese_clip(words):
    text = {"vocab_size": len(SPECIAL) + len(words), "hidden_size": 16,
            "max_position_embeddings": 12, "pad_token_id": PAD, **_LAYERS}  # fmt: skip
    config = transformers.ChineseCLIPConfig(
        text_config=text, vision_config=_VISION, projection_dim=20
    )
    images = transformers.ChineseCLIPImageProcessor(size=_SQUARE, crop_size=_SQUARE)
    model = transformers.ChineseCLIPModel(config)
    return model, transformers.ChineseCLIPProcessor(images, tokenizer(words, 10**30))


def vision_text(words):
    """BERT beside ViT, as multilingual models pair them."""
    text = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(words), hidden_size=16, max_position_embeddings=12,
        pad_token_id=PAD, **_LAYERS,
    )  # fmt: skip
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        transformers.ViTConfig(**_VISION), text, projection_dim=20
    )
    images = transformers.ViTImageProcessor(size=_SQUARE)
    model = transformers.VisionTextDualEncoderModel(config)
    return model, transformers.VisionTextDualEncoderProcessor(images, tokenizer(words, 10**30))


KINDS = (clip, siglip, chinese_clip, vision_text)


def _words_and_marks(words, marks, **names):
    vocabulary = {token: number for number, token in enumerate([*marks, *words])}
    own = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    own.normalizer = normalizers.Lowercase()
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in marks])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="<unk>", pad_token="<pad>", **names
    )


_TEXT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip


def colpali(words):
    """A vector a patch, of pictures that are resized to a square."""
    own = _words_and_marks(
        words, ["<pad>", "<eos>", "<bos>", "<unk>", "<image>"], eos_token="<eos>",
        bos_token="<bos>", padding_side="left", extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    images = transformers.SiglipImageProcessor(size={"height": 56, "width": 56})
    images.image_seq_length = 16
    processor = transformers.ColPaliProcessor(images, own)
    vision = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56,
              "patch_size": 14, "projection_dim": 16}  # fmt: skip
    text = {
        "model_type": "gemma",
        "vocab_size": len(own),
        "head_dim": 8,
        "pad_token_id": 0,
        **_TEXT,
    }
    both = transformers.PaliGemmaConfig(
        text_config=text, vision_config=vision, projection_dim=16, hidden_size=16,
        image_token_id=own.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    config = transformers.ColPaliConfig(vlm_config=both, embedding_dim=8)
    return transformers.ColPaliForRetrieval(config), processor


def colqwen2(words):
    """A vector a patch, of pictures of any size."""
    marks = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>",
             "vision_end": "<|vision_end|>"}  # fmt: skip
    ends = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    own = _words_and_marks(
        words, [*ends, *marks.values()], eos_token="<|im_end|>",
        extra_special_tokens={"image_token": "<|image_pad|>"},
    )  # fmt: skip
    images = transformers.Qwen2VLImageProcessor(
        size={"shortest_edge": 28**2, "longest_edge": 12 * 28**2}, patch_size=14, merge_size=2
    )
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2,
              "patch_size": 14, "spatial_merge_size": 2}  # fmt: skip
    rotary = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = {"vocab_size": len(own), "bos_token_id": 3, "eos_token_id": 3, **_TEXT}
    both = transformers.Qwen2VLConfig(
        text_config={**text, "rope_parameters": rotary}, vision_config=vision,
        **{f"{name}_token_id": own.convert_tokens_to_ids(mark) for name, mark in marks.items()},
    )  # fmt: skip
    config = transformers.ColQwen2Config(vlm_config=both, embedding_dim=8)
    return transformers.ColQwen2ForRetrieval(config), transformers.ColQwen2Processor(images, own)


def save(kind, folder, words):
    """Write a model of a kind with the same random weights every time."""
    torch.manual_seed(0)
    for part in kind(list(words)):
        part.save_pretrained(folder)
    return folder
