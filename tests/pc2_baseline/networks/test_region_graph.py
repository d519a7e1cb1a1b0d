"""VSRN's encoders against plain steps: graph, reading in order, last states."""

import pytest
import torch

from pc2_baseline.networks.region_graph import (
    OneWayCaptionEncoder,
    RegionGraphEncoder,
    RegionGraphLayer,
)

DIM, FEATURES = 6, 5


def awake(layer):
    """A layer that no longer begins as the identity."""
    torch.nn.init.normal_(layer.norm.weight)
    torch.nn.init.normal_(layer.norm.bias)
    layer.norm.running_mean.normal_()
    layer.norm.running_var.uniform_(0.5, 2)
    return layer


def encoder(layers=2):
    torch.manual_seed(0)
    made = RegionGraphEncoder(FEATURES, DIM, layers).double()
    for layer in made.layers:
        awake(layer)
    return made


def graph(layer, regions, training):
    """One image and one region at a time; the normalisation over all of them."""
    mixed = []
    for image in regions:
        for one in image:
            relation = layer.key(image) @ layer.query(one)
            mixed.append(layer.mix((relation[:, None] * layer.value(image)).sum(0) / len(image)))
    mixed = torch.stack(mixed)
    norm = layer.norm
    mean, variance = norm.running_mean, norm.running_var
    if training:
        mean, variance = mixed.mean(0), mixed.var(0, unbiased=False)
    scaled = (mixed - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    return regions + scaled.view_as(regions)


def along(regions):
    return regions / (regions.square().sum(1, keepdim=True).sqrt() + 1e-8)


@pytest.mark.parametrize("training", [False, True])
def test_the_image_is_the_last_state_of_a_reader_of_reasoning_regions(training):
    made = encoder().train(training)
    seen = torch.randn(2, 36, FEATURES).double()
    nodes = along(seen @ made.project.weight.T + made.project.bias)
    for layer in made.layers:
        nodes = graph(layer, nodes, training)
    nodes = along(nodes)
    cell = torch.nn.GRUCell(DIM, DIM).double()
    cell.load_state_dict({name[:-3]: value for name, value in made.read.state_dict().items()})
    state = torch.zeros(2, DIM).double()
    for place in range(36):
        state = cell(nodes[:, place], state)
    found = made(seen)
    assert (found.pooled - state / state.norm(dim=1, keepdim=True)).abs().max() < 1e-7
    assert (found.regions - nodes / nodes.norm(dim=2, keepdim=True)).abs().max() < 1e-7


def test_a_layer_begins_as_the_identity():
    regions = torch.randn(2, 36, DIM)
    assert torch.equal(RegionGraphLayer(DIM)(regions), regions)


def caption_batch():
    tokens = torch.randint(1, 20, (3, 7))
    lengths = torch.tensor([7, 2, 4])
    tokens[torch.arange(7) >= lengths[:, None]] = 0
    return tokens, lengths


def test_a_caption_read_one_way_is_its_last_word_and_padding_changes_nothing():
    made = OneWayCaptionEncoder(20, 4, DIM, 0.0).eval()
    tokens, lengths = caption_batch()
    found = made(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        states, last = made.read(made.embed(tokens[row : row + 1, :length]))
        expected = last[0, 0] / last[0, 0].norm()
        assert torch.allclose(found.pooled[row], expected, atol=1e-6)
        assert torch.allclose(found.words[row, 0], states[0, 0] / states[0, 0].norm(), atol=1e-6)
        assert not found.words[row, length:].any()
