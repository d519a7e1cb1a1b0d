"""The contrastive baseline: its loss, its temperature, its pairs."""

import math

import pytest

NO_DROPOUT = ["model.dropout=0", "model.word_dropout=0", "model.feature_dropout=0"]
LOSSES = pytest.mark.parametrize("loss", ["info_nce", "complementary", "gce"])


def slow_loss(similarity, kind, temperature):
    """The mean loss of a block, a pair and a direction at a time."""
    count, total = len(similarity), 0.0
    for row in range(count):
        for line in (similarity[row], similarity[:, row]):
            exps = [math.exp(value / temperature) for value in line.tolist()]
            shares = [value / sum(exps) for value in exps]
            others = [share for place, share in enumerate(shares) if place != row]
            total += {
                "info_nce": lambda own=shares[row]: -math.log(own),
                "complementary": lambda rest=others: -sum(math.log(1 - p) for p in rest),
                "gce": lambda own=shares[row]: (1 - own**0.7) / 0.7,
            }[kind]()
    return total / (2 * count)


@LOSSES
@pytest.mark.parametrize("temperature", [0.2, 0.5])
def test_the_loss_is_the_one_that_is_set_at_its_temperature(
    on_tiny, steps, scored, loss, temperature
):
    own = [f"method.loss={loss}", f"method.temperature={temperature}", "train.batch=24"]
    method, pairs = on_tiny("contrastive/demo", *NO_DROPOUT, *own)
    expected = slow_loss(scored(method.net, pairs), loss, temperature)
    method.fit_epoch(pairs, 0)
    assert steps[0][0] == pytest.approx(expected, rel=1e-4)


def test_rcls_loss_sums_the_other_pairs_of_both_directions_alone(on_tiny, steps, scored):
    method, pairs = on_tiny("rcl", "model.dropout=0", "train.batch=24")
    expected = 2 * slow_loss(scored(method.net, pairs, training=True), "complementary", 0.05)
    method.fit_epoch(pairs, 0)
    assert steps[0][0] == pytest.approx(expected, rel=1e-4)
