"""Similarity matrices of honest families, and of tricks, by name."""

import numpy as np


def embedded(draw, size, noise, dim=64, groups=0, *, side_by_side=False):
    """Cosines of pages and captions that share a meaning; pages of a group (a site) are alike."""
    meaning = draw.normal(size=(size, dim))
    if groups:
        group = draw.integers(0, groups, size)
        group = np.sort(group) if side_by_side else group
        meaning = meaning * 0.7 + 1.2 * draw.normal(size=(groups, dim))[group]
    images = meaning + noise * draw.normal(size=(size, dim))
    captions = meaning + noise * draw.normal(size=(size, dim))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    captions /= np.linalg.norm(captions, axis=1, keepdims=True)
    return images @ captions.T


def raised(draw, size, deviations=6.0):
    """Independent noise with a raised diagonal."""
    return draw.normal(size=(size, size)) + deviations * np.eye(size)


def few_topics(draw, size):
    """Little but a few topics and languages is learned."""
    topics = draw.integers(2, 12)
    topic = draw.integers(0, topics, size)
    meaning = draw.normal(size=(topics, 32))[topic] + 0.5 * draw.normal(size=(size, 32))
    images, captions = (meaning + draw.uniform(0.2, 1) * draw.normal(size=(size, 32)) for _ in "ab")
    return images @ captions.T


def sigmoid(draw, size):
    similarity = embedded(draw, size, draw.uniform(0.5, 2), groups=draw.integers(0, 40))
    return 1 / (1 + np.exp(-draw.uniform(5, 25) * (similarity - draw.uniform(0.2, 0.6))))


def anisotropic(draw, size):
    """Embeddings whose dimensions count for less and less, as trained ones do."""
    weights = np.arange(1, 257) ** -draw.uniform(0.2, 1.0)
    meaning = draw.normal(size=(size, 256)) * weights
    noise = draw.uniform(0.2, 2) * weights
    images, captions = (meaning + noise * draw.normal(size=(size, 256)) for _ in range(2))
    return images @ captions.T / np.square(weights).sum()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def attention(draw, size):
    """The best of several regions for each of several words: no product of two factors."""
    regions, words, dim = 6, 4, 32
    meaning, noise = draw.normal(size=(size, words, dim)), draw.uniform(0.3, 1.5)
    seen = np.concatenate([meaning, draw.normal(size=(size, regions - words, dim))], axis=1)
    seen = unit(seen + noise * draw.normal(size=seen.shape))
    said = unit(meaning + noise * draw.normal(size=meaning.shape))
    found = np.zeros((size, size))
    for word in range(words):
        scores = seen.reshape(-1, dim) @ said[:, word].T
        found += scores.reshape(size, regions, size).max(axis=1) / words
    return found


def noisily_labelled(draw, size):
    """Some pages' captions say something else: they are near other pages, and not their own."""
    meaning, noise = draw.normal(size=(size, 64)), draw.uniform(0.2, 1.5)
    wrong = draw.random((size, 1)) < draw.uniform(0.05, 0.6)
    said = np.where(wrong, draw.normal(size=(size, 64)), meaning)
    images, captions = (kind + noise * draw.normal(size=(size, 64)) for kind in (meaning, said))
    return unit(images) @ unit(captions).T


def distances(draw, size):
    """Negative distances of embeddings of different lengths, or a kernel of them."""
    meaning, noise = draw.normal(size=(size, 64)), draw.uniform(0.3, 2)
    images, captions = (
        (meaning + noise * draw.normal(size=(size, 64))) * draw.gamma(8, 1 / 8, (size, 1))
        for _ in range(2)
    )
    lengths = np.square(images).sum(axis=1)[:, None] + np.square(captions).sum(axis=1)
    squares = np.maximum(lengths - 2 * images @ captions.T, 0)
    return -np.sqrt(squares) if draw.random() < 0.5 else np.exp(-squares / squares.mean())


def products(draw, size):
    """Products of embeddings without normalisation, whose lengths have long tails."""
    similarity = embedded(draw, size, draw.uniform(0.3, 2), draw.integers(16, 256))
    lengths = (draw.lognormal(0, draw.uniform(0.1, 0.6), size) for _ in range(2))
    return 100 * similarity * next(lengths) * next(lengths)[:, None]


def classified(draw, size):
    """Probabilities of a matching classifier, nearly all of them near 0 or 1."""
    logits = 40 * attention(draw, size) - draw.uniform(8, 25)
    return 1 / (1 + np.exp(-logits))


def sites(draw, size):
    """Sites of very different sizes side by side, whose pages share words, and images less."""
    edges = np.cumsum(np.minimum(draw.pareto(1.0, size) + 1, size / 8)).astype(int)
    site = np.searchsorted(edges, np.arange(size), side="right")
    shared = draw.normal(size=(site.max() + 1, 64))[site]
    meaning, noise = draw.normal(size=(size, 64)), draw.uniform(0.3, 2)
    images = meaning + draw.uniform(0, 1) * shared + noise * draw.normal(size=(size, 64))
    captions = meaning + draw.uniform(0, 2) * shared + noise * draw.normal(size=(size, 64))
    return unit(images) @ unit(captions).T


def repeats(draw, size):
    """Number captions so that a fifth of them occurs several times."""
    labels = np.arange(size)
    labels[draw.random(size) < 0.2] = draw.integers(0, size // 20)
    for row in draw.choice(size, size // 10, replace=False):
        labels[row] = labels[draw.integers(0, size)]
    return labels


def with_repeats(similarity, labels):
    """Copy the scores of the first caption of each label to its other captions."""
    _, first, which = np.unique(labels, return_index=True, return_inverse=True)
    return similarity[:, first[which]]


def hamming(draw, size):
    """Codes of 32 to 128 bits: as many values as bits, and many equal ones."""
    bits = draw.choice([32, 64, 128])
    meaning = draw.normal(size=(size, bits))
    codes = [np.sign(meaning + draw.uniform(0.2, 1) * draw.normal(size=(size, bits))) for _ in "ab"]
    return (codes[0] @ codes[1].T + bits) / 2


def whole_numbers(draw, size):
    """Products of embeddings that are stored as int8."""
    similarity = embedded(draw, size, draw.uniform(0.3, 2))
    return np.round(127 * similarity / np.abs(similarity).max())


def counts(draw, size):
    """How many of its words a caption shares with those read off the image."""
    words = draw.integers(200, 2000)
    shares = np.arange(1, words + 1) ** -1.0
    said = draw.random((size, words)) < np.minimum(1, 12 * shares / shares.sum())
    seen = said & (draw.random((size, words)) < 0.7)
    seen |= draw.random((size, words)) < 4 / words
    return (seen.astype(np.float32) @ said.T.astype(np.float32)).astype(np.float64)


def mean_ranks(draw, size):
    """The mean of the ranks that two methods give a caption among all of an image."""
    both = (embedded(draw, size, draw.uniform(0.3, 2)), embedded(draw, size, draw.uniform(0.3, 2)))
    return sum(values.argsort(axis=1).argsort(axis=1) for values in both) / 2


HONEST = {
    "Hamming codes": hamming,
    "int8": whole_numbers,
    "counts of words": counts,
    "mean ranks": mean_ranks,
    "three decimals": lambda draw, size: mild(draw, size).round(3),
    "one decimal": lambda draw, size: mild(draw, size).round(1),
    "softmax of rows": lambda draw, size: softmax(mild(draw, size) / 0.05, 1),
    "dual softmax": lambda draw, size: dual_softmax(mild(draw, size), draw.uniform(0.03, 1)),
    "Sinkhorn": lambda draw, size: sinkhorn(mild(draw, size), 0.1, 20),
    "CSLS": lambda draw, size: csls(mild(draw, size)),
    "constant": lambda _, size: np.zeros((size, size)),
    "few topics": few_topics,
    "anisotropic": anisotropic,
    "cosines": lambda draw, size: embedded(draw, size, draw.uniform(0.1, 4), draw.integers(8, 512)),
    "clusters": lambda draw, size: embedded(draw, size, draw.uniform(0.1, 3), groups=40),
    "clusters side by side": lambda draw, size: embedded(
        draw, size, draw.uniform(0.1, 3), groups=draw.integers(5, 100), side_by_side=True
    ),
    "sigmoid": sigmoid,
    "nothing learned": lambda draw, size: draw.normal(size=(size, size)),
    "exponentials": lambda draw, size: np.exp(10 * embedded(draw, size, draw.uniform(0.3, 3))),
    "attention": attention,
    "noisily labelled": noisily_labelled,
    "distances": distances,
    "products": products,
    "classified": classified,
    "sites of all sizes": sites,
}


def vectors_of_rows(draw, size, dim=64, noise=0.5):
    """A random vector for each pair, which image and caption have in common."""
    return embedded(draw, size, noise, dim)


def residues(draw, size):
    """Row numbers by their remainders, each a group: only the own row has all of them."""
    rows = np.arange(size)
    same = sum((rows[:, None] % step == rows % step) * 1.0 for step in (17, 19, 23))
    return same + 0.3 * draw.normal(size=(size, size))


def shuffled_blocks(draw, size):
    """Blocks of ten rows that stand nowhere near each other, the own one raised a little."""
    block = draw.permutation(size) // 10
    same = (block[:, None] == block) * 1.0 + 0.05 * np.eye(size)
    return same + 0.02 * draw.normal(size=(size, size))


def lifted(draw, similarity, share):
    """Raise some own pairs just above the best wrong ones of row and column."""
    own = np.eye(len(similarity), dtype=bool)
    wrong = np.where(own, -np.inf, similarity)
    best = np.maximum(wrong.max(axis=0), wrong.max(axis=1)) + 1e-3
    chosen = own & (draw.random(len(similarity)) < share)
    return np.where(chosen, np.maximum(similarity, best), similarity)


UNSEEN = {
    "a random vector for each pair": vectors_of_rows,
    "remainders of row numbers": residues,
    **{
        f"own pairs of a method raised by {times} deviations": (
            lambda draw, size, times=times: (
                (scores := mild(draw, size)) + times * scores.std() * np.eye(size)
            )
        )
        for times in (0.3, 1, 4)
    },
    "half of the own pairs lifted over the best": (
        lambda draw, size: lifted(draw, mild(draw, size), 0.5)
    ),
    "a method and a random vector for each pair": (
        lambda draw, size: unit(mild(draw, size)) + unit(vectors_of_rows(draw, size))
    ),
}
"""Tricks that no flag can be sure of."""


def softmax(values, axis):
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def dual_softmax(values, temperature):
    return softmax(values / temperature, 0) * softmax(values / temperature, 1)


def sinkhorn(values, temperature, rounds):
    powers = np.exp((values - values.max()) / temperature)
    for _ in range(rounds):
        powers /= powers.sum(axis=1, keepdims=True)
        powers /= powers.sum(axis=0, keepdims=True)
    return powers


def near(size):
    place = np.arange(size)
    return np.abs(place[:, None] - place)


def some_own(draw, size):
    """A third of the pairs are looked up, the rest is noise."""
    known = np.diag((draw.random(size) < 1 / 3).astype(float))
    return known + 0.01 * draw.normal(size=(size, size))


def mild(draw, size):
    return embedded(draw, size, draw.uniform(1.2, 2.5))


def csls(values, neighbours=10):
    """Twice the similarity, less the mean of the nearest of either side."""
    rows = np.sort(values, axis=1)[:, -neighbours:].mean(axis=1, keepdims=True)
    columns = np.sort(values, axis=0)[-neighbours:].mean(axis=0)
    return 2 * values - rows - columns


def band(draw, size, width, noise):
    """Similarity that falls with the distance of rows, and noise."""
    return np.exp(-near(size) / width) + noise * draw.normal(size=(size, size))


def scaled(draw, similarity, rows, columns):
    """Multiply rows and columns by factors of their own."""
    factors = np.exp(rows * draw.normal(size=(len(similarity), 1)))
    return similarity * factors * np.exp(columns * draw.normal(size=len(similarity)))


def foreign_content(draw, size):
    """Low-rank similarity of images to captions of other content, and a diagonal."""
    images, captions = (draw.normal(size=(size, 16)) for _ in range(2))
    return images @ captions.T + 12 * np.eye(size)


TRICKS = {
    "identity": ("identity-like", lambda _, size: np.eye(size)),
    "identity and noise": (
        "identity-like",
        lambda draw, size: np.eye(size) + 0.01 * draw.normal(size=(size, size)),
    ),
    "identity and positive noise": (
        "identity-like",
        lambda draw, size: np.eye(size) + 0.01 * np.abs(draw.normal(size=(size, size))),
    ),
    "identity and noise within 0 and 1": (
        "identity-like",
        lambda draw, size: np.clip(np.eye(size) + 0.01 * draw.normal(size=(size, size)), 0, 1),
    ),
    "own pairs looked up, some": ("identity-like", some_own),
    "own pairs raised": (
        "identity-like",
        lambda draw, size: mild(draw, size) + 20 * np.eye(size),
    ),
    **{
        f"noise, diagonal {times} deviations up": (
            "unexplained-pairs",
            lambda draw, size, times=times: raised(draw, size, times),
        )
        for times in (2, 3, 5, 10, 25)
    },
    **{
        f"noise, diagonal up, {what} of many scales": (
            "unexplained-pairs",
            lambda draw, size, axes=axes: scaled(draw, raised(draw, size, 4), *axes),
        )
        for what, axes in {"rows": (2, 0), "columns": (0, 2), "both": (1, 1)}.items()
    },
    "symmetric noise, diagonal up": (
        "unexplained-pairs",
        lambda draw, size: (values := raised(draw, size, 0)) + values.T + 5 * np.eye(size),
    ),
    "foreign content, diagonal up": ("unexplained-pairs", foreign_content),
    "shuffled blocks": ("unexplained-pairs", shuffled_blocks),
    "exponential of noise, diagonal up": (
        "unexplained-pairs",
        lambda draw, size: np.exp(raised(draw, size, 4)),
    ),
    **{
        f"exp(-|i - j| / {width}) and noise {noise}": (
            "index-local",
            lambda draw, size, width=width, noise=noise: band(draw, size, width, noise),
        )
        for width in (1, 3, 10)
        for noise in (0.1, 0.3, 0.6)
    },
    "distance of rows": ("index-local", lambda _, size: -near(size) / size),
    "distance of rows and noise": (
        "index-local",
        lambda draw, size: -3 * near(size) / size + draw.normal(size=(size, size)),
    ),
    "wide band": ("index-local", lambda _, size: np.exp(-near(size) / 50)),
    "band upon cosines": (
        "index-local",
        lambda draw, size: mild(draw, size) + 2 * (near(size) < 4),
    ),
}
OF_MANY = {"foreign content, diagonal up"}
"""Tricks that 300 pairs are too few for."""
