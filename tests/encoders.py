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


def characters(words, limit):
    """Single characters, by the tokenizer that SigLIP 2 has for itself."""
    letters = dict.fromkeys(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *"".join(words)])
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    return transformers.Siglip2Tokenizer(vocabulary, model_max_length=limit)


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
    model = transformers.SiglipModel(config)
    return model, transformers.SiglipProcessor(images, tokenizer(words, 12))


def siglip2(words):
    """The kind that keeps a picture's shape, with a mask of its patches."""
    vision = {"hidden_size": 16, "patch_size": 8, "num_patches": 16, **_LAYERS}
    text = {**_siglip_text(words), "vocab_size": 5 + len("".join(words))}
    config = transformers.Siglip2Config(text_config=text, vision_config=vision)
    images = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    model = transformers.Siglip2Model(config)
    return model, transformers.Siglip2Processor(images, characters(words, 12))


def chinese_clip(words):
    text = {"vocab_size": len(SPECIAL) + len(words), "hidden_size": 16,
            "max_position_embeddings": 12, "pad_token_id": PAD, **_LAYERS}  # fmt: skip
    config = transformers.ChineseCLIPConfig(
        text_config=text, vision_config=_VISION, projection_dim=20
    )
    images = transformers.ChineseCLIPImageProcessor(size=_SQUARE, crop_size=_SQUARE)
    model = transformers.ChineseCLIPModel(config)
    return model, transformers.ChineseCLIPProcessor(images, tokenizer(words, 10**30))


def alt_clip(words):
    """Its text tower is XLM-R, which counts places from behind that of padding."""
    text = {"vocab_size": len(SPECIAL) + len(words), "hidden_size": 16, "project_dim": 20,
            "max_position_embeddings": 13, "pad_token_id": PAD, "eos_token_id": END,
            "bos_token_id": START, **_LAYERS}  # fmt: skip
    config = transformers.AltCLIPConfig(text_config=text, vision_config=_VISION, projection_dim=20)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    model = transformers.AltCLIPModel(config)
    return model, transformers.AltCLIPProcessor(images, tokenizer(words, 10**30))


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


KINDS = (clip, siglip, siglip2, chinese_clip, alt_clip, vision_text)


def save(kind, folder, words):
    """Write a model of a kind with the same random weights every time."""
    torch.manual_seed(0)
    for part in kind(list(words)):
        part.save_pretrained(folder)
    return folder
