"""Made-up data sets in the field's own layout, and a small sentence splitter for NLTK."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REGIONS = 36
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")


@dataclass(frozen=True)
class Field:
    """What is made.

    Attributes:
        name: Name of the data set and its folder.
        train, dev, test: Images.
        each: Captions an image.
        repeated: Whether dev and test store each image once a caption.
        topics: An image shows one; its captions name it.
    """

    name: str = "f30k_precomp"
    train: int = 20
    dev: int = 8
    test: int = 6
    each: int = 5
    repeated: bool = False
    width: int = 16
    topics: int = 8
    seed: int = 0


def make_field(parent: Path, plan: Field) -> Path:
    """Write ``{parent}/{name}`` and ``{parent}/vocab``; give the parent."""
    rng = np.random.default_rng(plan.seed)
    folder = parent / plan.name
    folder.mkdir(parents=True)
    pictures = rng.normal(size=(plan.topics, plan.width))
    test = "testall" if plan.name == "coco_precomp" else "test"
    for split, images in (("train", plan.train), ("dev", plan.dev), (test, plan.test)):
        topics = rng.permutation(np.arange(images) % plan.topics)
        regions = pictures[topics][:, None] + 0.3 * rng.normal(size=(images, REGIONS, plan.width))
        if plan.repeated and split != "train":
            regions = regions.repeat(plan.each, axis=0)
        np.save(folder / f"{split}_ims.npy", regions.astype(np.float32))
        texts = [
            f"A w{topic}a W{topic}b, image {row} no.{number}."
            for row, topic in enumerate(topics)
            for number in range(plan.each)
        ]
        if plan.name == "cc152k_precomp":
            lines = [f"{row:08d}\t{text}" for row, text in enumerate(texts)]
            (folder / f"{split}_caps.tsv").write_text("\n".join(lines) + "\n")
        else:
            (folder / f"{split}_caps.txt").write_text("\n".join(texts) + "\n")
    words = [*SPECIALS, "a", ",", ".", "image"]
    words += [f"w{topic}{part}" for topic in range(plan.topics) for part in "ab"]
    vocabulary = {
        "word2idx": {word: index for index, word in enumerate(words)},
        "idx2word": {str(index): word for index, word in enumerate(words)},
        "idx": len(words),
    }
    (parent / "vocab").mkdir(exist_ok=True)
    (parent / "vocab" / f"{plan.name}_vocab.json").write_text(json.dumps(vocabulary))
    return parent


def make_punkt(data: Path) -> None:
    """Learn a sentence splitter from a few sentences and store it where NLTK looks for it."""
    import nltk
    from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

    folder = data / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True, mode=0o700)
    nltk.data.path.insert(0, str(data))
    text = "A man runs. Two dogs play in the snow. A girl eats. It is no. 3 of them. " * 20
    trainer = PunktTrainer(text)
    save_punkt_params(trainer.get_params(), dir=str(folder))
