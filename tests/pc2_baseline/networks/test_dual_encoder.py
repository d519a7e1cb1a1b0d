"""Dual encoders that learn: from screenshots and texts, wholly or in part, by every method."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

from now_builder.dual_encoder import EncoderInputs, PictureEncoder
from now_builder.formats.screenshots import find_screenshots
from now_builder.formats.shard import open_screenshot
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.data.pixels import pairs_with_texts
from pc2_baseline.methods import make_method
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.modules.contrastive import info_nce
from pc2_baseline.networks.dual_encoder import DualNetworkSettings
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
KINDS = ("clip", "siglip")


@pytest.fixture
def settings(painted, small_clip):
    """Small settings of a preset for a dual encoder."""

    def make(preset="clip", *overrides):
        return read_settings(preset, [
            'model.similarity="dual_encoder"', f'model.encoder="{small_clip}"',
            f'data.captures="{painted / "captures"}"', "data.tokenizer=jieba", "train.batch=8",
            "train.warmup_epochs=1", "train.epochs=2", "train.device=cpu", "train.lr=1e-3",
            "train.tensorboard=false", "train.pictures=false", *overrides,
        ])  # fmt: skip

    return make


@contextmanager
def opened(folder, settings, *splits):
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                open_pairs(folder / "release", split, settings.data, CPU, settings.model)
            )
            for split in splits
        ]


def network(encoder, **more):
    torch.manual_seed(0)
    model = DualNetworkSettings(similarity="dual_encoder", encoder=str(encoder), **more)
    return make_network(model, Sizes(1, 1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_before_it_learns_its_vectors_are_those_of_the_pre_trained_model(
    painted, encoders, settings, tmp_path, kind
):
    """From captures and texts, in batches of mixed lengths, against pictures one by one."""
    folder = encoders.save(getattr(encoders, kind), tmp_path / kind, [f"a{n}" for n in range(8)])
    own = settings("clip", f'model.encoder="{folder}"', "model.precision=fp32")
    expected = PictureEncoder(str(folder), CPU)
    pages = pairs_with_texts(painted / "release", "test")
    shots = find_screenshots(painted / "captures", pages)
    pictures = [open_screenshot(shots[page.key].read(), page.key) for page in pages]
    net = network(folder).eval()
    with opened(painted, own, "test") as (pairs,), torch.no_grad():
        batch = pairs.batch(np.arange(8))
        images = net.encode_images(batch.regions).pooled
        captions = net.encode_captions(batch.tokens, batch.lengths).pooled
    one = torch.cat([expected.images([picture]) for picture in pictures])
    torch.testing.assert_close(images, one, atol=3e-6, rtol=0)
    assert one.std(0).max() > 1e-3, "pages are told apart"
    assert captions.std(0).max() > 1e-3, "captions, too; the towers' own test has their vectors"
    assert own.model.pooled_width == images.shape[1]


def gradients(net, batch, loss=None):
    torch.manual_seed(1)
    similarity = net.score_batch(batch)
    (info_nce(similarity, 0.1).mean() if loss is None else loss(similarity)).backward()
    return {
        name: value.grad.clone() for name, value in net.named_parameters() if value.grad is not None
    }


def test_gradients_in_chunks_are_those_of_the_whole_batch(painted, small_clip, settings):
    """Also those of a loss on hardest negatives, and with the same draws of a dropout."""
    with opened(painted, settings(), "train") as (pairs,):
        batch = pairs.batch(np.arange(10))
    for dropout, chunk in ((0.0, 3), (0.0, 1), (0.3, 10)):
        whole, cut = network(small_clip), network(small_clip, chunk=chunk)
        for net in (whole, cut):
            net.train()
            for part in net.modules():
                if hasattr(part, "dropout") and isinstance(part.dropout, float):
                    part.dropout = dropout
        expected, found = gradients(whole, batch), gradients(cut, batch)
        assert expected.keys() == found.keys()
        assert len(expected) > 40
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=2e-6, rtol=2e-4, msg=name)
    drawn = network(small_clip).train()
    assert any(
        not torch.equal(value, gradients(drawn, batch)[name]) for name, value in expected.items()
    ), "the dropout acts"


def test_a_chunk_bounds_the_activations_that_are_kept(painted, small_clip, settings):
    with opened(painted, settings(), "train") as (pairs,):
        batch = pairs.batch(np.arange(16))

    def kept(**more):
        held = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda value: held.append(value.nbytes) or value, lambda value: value
        ):
            network(small_clip, **more).train().encode_images(batch.regions)
        return sum(held)

    assert kept(chunk=4) < 1.1 * batch.regions.nbytes < kept() / 2  # the pixels themselves


def learned(net):
    return {name for name, value in net.named_parameters() if value.requires_grad}


def test_adapters_alone_learn_and_begin_as_nothing(painted, small_clip, settings):
    pytest.importorskip("peft", reason="pip install 'noise-of-web[lora]'")
    whole, adapted = network(small_clip), network(small_clip, lora_rank=2)
    found = learned(adapted)
    assert found
    assert all("lora_" in name for name in found)
    assert any("vision_model" in name for name in found)
    assert any("text_model" in name for name in found)
    with opened(painted, settings(), "train") as (pairs,), torch.no_grad():
        batch = pairs.batch(np.arange(6))
        assert torch.equal(whole.eval().score_batch(batch), adapted.eval().score_batch(batch))


def test_a_method_of_two_peers_takes_it(painted, settings):
    own = settings("pc2-paper", "method.classes=8", "method.class_input=pooled")
    with opened(painted, own, "train", "dev") as (pairs, dev):
        method = make_method(own, Sizes(24, 1, 28), CPU)
        before = method.similarity(dev)
        assert np.isfinite([*method.fit_epoch(pairs, 0).values()]).all()
        assert np.abs(method.similarity(dev) - before).max() > 1e-5


def test_inputs_are_asked_for_without_weights(small_clip, monkeypatch):
    network = "transformers.AutoModel.from_pretrained"
    monkeypatch.setattr(network, lambda *_, **__: pytest.fail("weights"))
    assert EncoderInputs(str(small_clip)).width == 20
