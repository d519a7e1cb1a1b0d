"""The GRU that is differentiated by hand agrees with PyTorch's."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pc2_baseline.networks.encoders import read_words as read_packed
from pc2_baseline.networks.encoders import word_rows

LENGTHS = [[3, 7, 1, 7, 2], [5, 5], [1], [9, 1, 1], [1, 1, 1]]


def by_pytorch(gru, embedded, lengths):
    """The slow, obvious version."""
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(
        gru(packed)[0], batch_first=True, total_length=embedded.shape[1]
    )
    return sum(states.chunk(2, dim=-1)) / 2 if gru.bidirectional else states


def read_words(gru, embedded, lengths):
    """Pack padded words, read them, and pad them again."""
    rows = word_rows(lengths, embedded.shape[1], embedded.device)
    return rows.pad(read_packed(gru, embedded.flatten(0, 1)[rows.packed], rows))


def layer(both_ways, kind=torch.float64):
    torch.manual_seed(1)
    return nn.GRU(6, 4, batch_first=True, bidirectional=both_ways, dtype=kind)


def padded(lengths, kind=torch.float64):
    """Words of captions, with numbers after their ends too, and two columns that none fills."""
    torch.manual_seed(2)
    return torch.randn(len(lengths), max(lengths) + 2, 6, dtype=kind, requires_grad=True)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_and_all_gradients_are_pytorchs(both_ways, lengths):
    gru, counts = layer(both_ways), torch.tensor(lengths)
    found = []
    for read in (by_pytorch, read_words):
        gru.zero_grad()
        embedded = padded(lengths)
        states = read(gru, embedded, counts)
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        found.append([states, embedded.grad, *(weight.grad for weight in gru.parameters())])
    for expected, given in zip(*found, strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


def test_nothing_is_read_after_the_end():
    counts = torch.tensor([1, 4])
    embedded = padded([1, 4])
    states = read_words(layer(both_ways=True), embedded, counts)
    assert not states[0, 1:].any()
    assert not states[1, 4:].any()
    states.sum().backward()
    assert not embedded.grad[0, 1:].any()
    assert not embedded.grad[1, 4:].any()


def test_frozen_words_take_no_gradient():
    """Word vectors that do not learn take no gradient; the layer's weights still do."""
    gru, counts = layer(both_ways=True), torch.tensor([3, 2])
    embedded = padded([3, 2]).detach()
    read_words(gru, embedded, counts).sum().backward()
    assert embedded.grad is None
    assert all(weight.grad.any() for weight in gru.parameters())
