"""Text side: tokens to unit vectors by a bidirectional GRU, and their attention pooling."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pc2_baseline.networks.codes import CaptionCodes, word_mask, xavier
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.recurrent import read_words


class CaptionPooling(nn.Module):
    """Pool the words of each caption by self-attention to their mean, padding apart.

    Source:
        TextSA of SGRAF (Diao et al., AAAI 2021).
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(dropout))
        self.whole = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(dropout))
        self.weigh = nn.Linear(dim, 1)
        xavier(self)

    def forward(
        self, words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
    ) -> Float[Tensor, "captions dim"]:
        """Return one unit vector per caption."""
        padding = ~word_mask(lengths, words.shape[1], words.device)
        mean = words.sum(1) / lengths.to(words)[:, None]
        scores = self.weigh(self.local(words) * self.whole(mean)[:, None]).squeeze(-1)
        weights = scores.masked_fill(padding, float("-inf")).softmax(1)
        return unit((weights[..., None] * words).sum(1))


class WordMean(nn.Module):
    """Pool the words of each caption by their mean; it has no weights."""

    def __init__(self, _dim: int, _dropout: float) -> None:
        super().__init__()

    def forward(
        self, words: Float[Tensor, "captions words dim"], _: Int[Tensor, " captions"]
    ) -> Float[Tensor, "captions dim"]:
        """Return one unit vector per caption: the sum's, which is the mean's."""
        return unit(words.sum(1))


class LastWord(nn.Module):
    """Take the last word of each caption for all of it, as a one-way reader leaves it."""

    def __init__(self, _dim: int, _dropout: float) -> None:
        super().__init__()

    def forward(
        self, words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
    ) -> Float[Tensor, "captions dim"]:
        """Return one unit vector per caption."""
        last = (lengths - 1).to(words.device)[:, None, None].expand(-1, 1, words.shape[2])
        return words.gather(1, last)[:, 0]


class CaptionEncoder(nn.Module):
    """Embed tokens, read them both ways, average the two directions."""

    pooling: type[nn.Module] = CaptionPooling
    both_ways = True

    def __init__(
        self, vocabulary: int, word_dim: int, dim: int, dropout: float, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        self.read = nn.GRU(word_dim, dim, batch_first=True, bidirectional=self.both_ways)
        self.pool = self.pooling(dim, dropout)

    def forward(
        self, tokens: Int[Tensor, "captions words"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode the captions of a batch."""
        embedded = self.dropout(self.embed(tokens))
        if self.training:
            embedded = with_blanks(embedded, self.word_dropout)
        words = unit(read_words(self.read, embedded, lengths))
        return CaptionCodes(words, self.pool(words, lengths), lengths)


class LocalCaptionEncoder(CaptionEncoder):
    """A caption encoder for networks that compare words alone: the pooled vector is their mean."""

    pooling = WordMean


class OneWayCaptionEncoder(CaptionEncoder):
    """A caption encoder that reads forwards; its last state is the caption."""

    pooling = LastWord
    both_ways = False


def with_blanks(
    embedded: Float[Tensor, "captions words dim"], share: float
) -> Float[Tensor, "captions words dim"]:
    """Replace a random share of the words of each caption by zeros."""
    if not share:
        return embedded
    blank = torch.rand(embedded.shape[:2], device=embedded.device) < share
    return embedded.masked_fill(blank[..., None], 0.0)
