"""RCL: a network learns from what does not match (Hu et al., TPAMI 2023)."""

from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import SoftmaxSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.contrastive import complementary
from pc2_baseline.modules.coteaching import Rows, warm_up_batches
from pc2_baseline.modules.learner import rate, take_steps
from pc2_baseline.networks.encoders import Loss


class RclSettings(SoftmaxSettings):
    """RCL (Hu et al., TPAMI 2023): the complementary contrastive loss."""


class Rcl(OneNetwork[RclSettings]):
    """One network with the complementary contrastive loss on all pairs, which are not divided.

    Source:
        RCL (Hu et al., TPAMI 2023), with its logarithmic loss.

    Differs:
        There is no warm-up: the epochs of ``train.warmup_epochs`` are like the others.
    """

    section = RclSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch on all pairs."""
        self.begin(epoch, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)

        def loss(rows: Rows) -> Loss:
            similarity = self.net.score_batch(train.batch(rows))
            return 2 * complementary(similarity, self.method.temperature).mean()  # both ways

        return {"loss": take_steps(self.learner, batches, loss, epoch)}
