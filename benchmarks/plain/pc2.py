"""PC²'s released training in plain PyTorch: one caption at a time.

It follows the behaviour of the authors' code (``alipay/PC2-NoiseofWeb``) on the weights of a
``Pc2Network``. Batches and mixtures are the method's, so that both train on the same pairs;
everything between is written out.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet, full_batches
from pc2_baseline.methods.pc2.network import Pc2Network
from pc2_baseline.methods.pc2.released import Pc2ReleasedSettings, divided_batches
from pc2_baseline.modules.coteaching import CLEAN, ORDER, PEERS, Rows
from pc2_baseline.modules.division import Division, by_posterior, clean_posterior
from pc2_baseline.modules.seeds import stream

REGIONS = 36
OWN_WORDS = 1e-14
"""Share of a replaced word that is added, so that zero vectors have a gradient; theirs: 1e-8."""


def l2norm(x: Tensor, dim: int = -1) -> Tensor:
    """Scale to length 1."""
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


@dataclass
class PlainPeer:
    """A network as plain modules, with its optimiser and bank.

    Attributes:
        net: Network whose weights are used, never its forward passes.
        lr: Learning rate of Adam.
        bank: Prediction of each pair, as the released code keeps it.
        written: Entries of the bank that were written.
    """

    net: Pc2Network
    lr: float
    bank: Tensor
    written: Tensor
    optimiser: torch.optim.Adam = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset the optimiser."""
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=self.lr)

    def regions(self, batch: Batch) -> Tensor:
        """Project the regions of a batch."""
        return l2norm(self.net.matching.images.project(batch.regions))

    def words(self, batch: Batch) -> Tensor:
        """Read the captions of a batch in both directions."""
        text = self.net.matching.captions
        packed = pack_padded_sequence(
            text.dropout(text.embed(batch.tokens)), batch.lengths, batch_first=True,
            enforce_sorted=False,
        )  # fmt: skip
        states, _ = pad_packed_sequence(text.read(packed)[0], batch_first=True)
        half = states.shape[2] // 2
        return l2norm((states[..., :half] + states[..., half:]) / 2)

    def classify(self, vectors: Tensor) -> Tensor:
        """Return logits of 36 concatenated vectors; padded words are resampled to 36."""
        if vectors.shape[1] != REGIONS:
            vectors = refit(vectors, REGIONS)
        logits: Tensor = self.net.classify.layers(vectors.flatten(1))
        return logits

    def score(self, regions: Tensor, words: Tensor, lengths: Sequence[int]) -> Tensor:
        """Score one caption after the other against all images."""
        pool, sgr = self.net.matching.images.pool, self.net.matching.similarity
        whole = pool.whole(regions.mean(1))
        common = pool.local(regions) * whole[:, None]
        image = l2norm((pool.weigh(common).softmax(1) * regions).sum(1))
        columns = []
        for row, length in enumerate(lengths):
            word = words[row : row + 1, :length]
            caption = self._pooled_caption(word)
            columns.append(score_caption(sgr, regions, image, word, caption))
        return torch.cat(columns, 1)

    def _pooled_caption(self, word: Tensor) -> Tensor:
        pool = self.net.matching.captions.pool
        common = pool.local(word) * pool.whole(word.mean(1))[:, None]
        return l2norm((pool.weigh(common).softmax(1) * word).sum(1))

    def step(self, loss: Tensor, clip: float) -> float:
        """Take one optimiser step."""
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), clip)
        self.optimiser.step()
        return loss.item()

    def remember(self, rows: Rows, predictions: Tensor) -> None:
        """Write predictions into the bank."""
        self.bank[torch.from_numpy(rows)] = predictions.detach().float()
        self.written[torch.from_numpy(rows)] = True


def score_caption(
    sgr: nn.Module, regions: Tensor, image: Tensor, word: Tensor, caption: Tensor
) -> Tensor:
    """Score all images with one caption, by SGR."""
    expanded = word.expand(len(regions), -1, -1)
    affinity = l2norm(functional.leaky_relu(regions @ expanded.transpose(1, 2), 0.1), 2)
    attention = torch.softmax(9.0 * affinity, 1)
    context = l2norm(attention.transpose(1, 2) @ regions)
    local = l2norm(sgr.local((context - expanded) ** 2))
    whole = l2norm(sgr.whole((image - caption) ** 2))
    nodes = torch.cat([whole[:, None], local], 1)
    for layer in sgr.layers:
        edges = torch.softmax(layer.query(nodes) @ layer.key(nodes).transpose(1, 2), -1)
        nodes = torch.relu(layer.mix(edges @ nodes))
    return torch.sigmoid(sgr.evaluate(nodes[:, 0]))


def refit(words: Tensor, size: int) -> Tensor:
    """Interpolate padded words to ``size`` places, or centre them in ``size`` places."""
    have = words.shape[1]
    if have > size:
        return functional.interpolate(words.transpose(1, 2), size=size, mode="linear",
                                      align_corners=False).transpose(1, 2)  # fmt: skip
    front = (size - have) // 2
    return functional.pad(words, (0, 0, front, size - have - front))


def hinges(scores: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the costs of both directions; margins are broadcast by their shape."""
    diagonal = scores.diag()
    same = torch.eye(len(scores), dtype=torch.bool)
    i2t = (margins + scores - diagonal[:, None]).clamp(min=1e-8).masked_fill(same, 0)
    t2i = (margins + scores - diagonal[None]).clamp(min=1e-8).masked_fill(same, 0)
    return i2t, t2i


def mean_costs(scores: Tensor, margin: float) -> Tensor:
    """Return each pair's loss with mean negatives."""
    i2t, t2i = hinges(scores, scores.new_full((1,), margin))
    return i2t.mean(1) + t2i.mean(0)


def hardest_cost(scores: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Return the batch's loss with hardest negatives and soft margins, broadcast by their shape."""
    i2t, t2i = hinges(scores, (10**labels - 1) / 9 * margin)
    return i2t.max(1)[0].sum() + t2i.max(0)[0].sum()


class PlainPc2:
    """Train two peers as PC²'s released code does, from copies of networks.

    The settings must be like the preset's.
    """

    def __init__(self, settings: Settings, nets: Sequence[Pc2Network], pairs: int) -> None:
        self.method, self.train = cast(Pc2ReleasedSettings, settings.method), settings.train
        self.peers = [
            PlainPeer(
                copy.deepcopy(net), settings.train.lr,
                torch.zeros(pairs, self.method.classes, dtype=torch.float32),
                torch.zeros(pairs, dtype=torch.bool),
            )
            for net in nets
        ]  # fmt: skip
        self.divisions: list[tuple[Division, np.ndarray]] = []

    def fit_epoch(self, pairs: PairSet, epoch: int) -> list[float]:
        """Train both peers for an epoch and divide the pairs; return their mean losses."""
        learn = self.warm_up if epoch < self.train.warmup_epochs else self.co_teach
        losses = [learn(pairs, epoch, peer) for peer in range(len(PEERS))]
        divided = [self.divide(pairs, epoch, peer) for peer in range(len(PEERS))]
        self.divisions = [(division, correspondence) for division, correspondence, _ in divided]
        return losses

    def warm_up(self, pairs: PairSet, epoch: int, peer: int) -> float:
        """Train a peer on all pairs, with mean negatives."""
        trained, losses = self.peers[peer], []
        trained.net.train()
        size, seed = self.train.batch, self.train.seed
        for rows in full_batches(np.arange(len(pairs)), size, stream(seed, epoch, peer, CLEAN)):
            if len(rows) == 1:
                break
            batch = pairs.batch(rows)
            regions, words = trained.regions(batch), trained.words(batch)
            logits = trained.classify(regions)
            scores = trained.score(regions, words, batch.lengths.tolist())
            trained.remember(rows, logits.softmax(1))
            loss = mean_costs(scores, self.method.margin).sum()
            loss = loss + self.class_terms(logits, trained.classify(words))
            losses.append(trained.step(loss, self.train.clip))
        return float(np.mean(losses))

    def class_terms(self, images: Tensor, captions: Tensor) -> Tensor:
        """Return the pseudo-class loss minus the mean of each image's entropy."""
        loss = functional.cross_entropy(images, captions.softmax(1).max(1)[1])
        entropy = -(images.softmax(1) * images.log_softmax(1)).sum(1).mean()
        return loss - self.method.lambda_entropy * entropy

    @torch.no_grad()
    def divide(
        self, pairs: PairSet, epoch: int, peer: int
    ) -> tuple[Division, np.ndarray, np.ndarray]:
        """Divide the pairs; also return each pair's correspondence and loss."""
        trained, seed = self.peers[peer], self.train.seed
        trained.net.eval()
        losses, moved = np.zeros((2, len(pairs)), dtype=np.float32)
        size = self.method.division_batch
        order = stream(seed, len(pairs), ORDER, epoch)
        for rows in full_batches(np.arange(len(pairs)), size, order):
            batch = pairs.batch(rows)
            regions, words = trained.regions(batch), trained.words(batch)
            scores = trained.score(regions, words, batch.lengths.tolist())
            losses[rows] = mean_costs(scores, self.method.margin).numpy()
            new, old = trained.classify(regions).softmax(1), trained.bank[torch.from_numpy(rows)]
            new, old = new.double(), old.double()
            kept = trained.written[torch.from_numpy(rows)]
            divergence = (new * (new.log() - old.log())).sum(1)
            moved[rows] = divergence.where(kept, torch.zeros_like(divergence)).numpy()
        division = by_posterior(clean_posterior(losses, seed), losses)
        stable = by_posterior(clean_posterior(moved, seed), moved)
        prob = division.clean_prob
        return division, prob + (1 - prob) * stable.clean_prob * stable.is_clean, losses

    def co_teach(self, pairs: PairSet, epoch: int, peer: int) -> float:
        """Train a peer by the other's division: a clean step, later also a noisy one."""
        since, trained = epoch - self.train.warmup_epochs, self.peers[peer]
        division, correspondence = self.divisions[1 - peer]
        if since == 0:
            trained.restart()
        for group in trained.optimiser.param_groups:
            group["lr"] = self.train.lr * 0.1 ** (since // self.train.lr_drop_epoch)
        trained.net.train()
        size, seed = self.train.batch, self.train.seed
        losses = []
        for clean, noisy in divided_batches(division, size, seed, epoch, peer):
            labels = torch.from_numpy(correspondence[clean]).float()[:, None]
            losses.append(self.clean_step(trained, pairs.batch(clean), labels))
            if since >= self.method.noisy_from_epoch:
                self.noisy_step(trained, pairs, division, clean, noisy)
        return float(np.mean(losses))

    def clean_step(self, trained: PlainPeer, batch: Batch, labels: Tensor) -> float:
        """Take a step on clean pairs."""
        regions, words = trained.regions(batch), trained.words(batch)
        scores = trained.score(regions, words, batch.lengths.tolist())
        loss = hardest_cost(scores, labels, self.method.margin)
        loss = loss + self.class_terms(trained.classify(regions), trained.classify(words))
        return trained.step(loss, self.train.clip)

    def noisy_step(
        self, trained: PlainPeer, pairs: PairSet, division: Division, clean: Rows, noisy: Rows
    ) -> None:
        """Take a step on noisy images with captions of clean pairs of similar predictions."""
        batch, other = pairs.batch(noisy), pairs.batch(clean)
        regions, words = trained.regions(batch), trained.words(batch)
        others, other_words = trained.regions(other), trained.words(other)
        queries, keys = trained.classify(regions).softmax(1), trained.classify(others).softmax(1)
        trained.remember(np.searchsorted(division.noisy, noisy), queries)
        trained.remember(np.searchsorted(division.clean, clean), keys)
        cosines = functional.cosine_similarity(queries[:, None], keys[None], dim=-1)
        labels, chosen = cosines.max(1)
        laid = refit(other_words, words.shape[1])[chosen] + OWN_WORDS * words
        lengths = other.lengths[chosen].clamp(max=words.shape[1]).tolist()
        labels = torch.where(labels < 0.5, torch.zeros_like(labels), labels)
        scores = trained.score(regions, laid, lengths)
        trained.step(hardest_cost(scores, labels, self.method.margin), self.train.clip)

    @torch.no_grad()
    def similarity(self, split: PairSet, block: int = 100) -> np.ndarray:
        """Return the peers' mean similarity of all images with all captions, by blocks."""
        matrices = []
        starts = range(0, len(split), block)
        batches = [split.batch(np.arange(len(split))[start : start + block]) for start in starts]
        for trained in self.peers:
            trained.net.eval()
            images = [trained.regions(batch) for batch in batches]
            captions = [(trained.words(batch), batch.lengths.tolist()) for batch in batches]
            rows = [
                torch.cat([trained.score(one, *each) for each in captions], 1) for one in images
            ]
            matrices.append(torch.cat(rows))
        return torch.stack(matrices).mean(0).numpy()
