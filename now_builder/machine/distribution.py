"""Settings of a stage that several machines can share: by Ray, or as K-th of N shares."""

import re
from typing import Literal

from pydantic import Field

from now_builder.config import Strict
from now_builder.errors import ConfigError


class DistributedSettings(Strict):
    """Settings that ``crawl`` and ``detect`` share."""

    engine: Literal["local", "ray"] = Field(
        "local",
        description="Where to run: local (this machine) or ray (the workers of a Ray cluster; all "
        "paths must be on a file system that they share).",
    )
    ray_address: str = Field(
        "",
        description="Ray cluster address (auto, ray://head:10001); empty: start Ray locally.",
    )
    worker_cpus: float = Field(2.0, gt=0, description="CPUs of a Ray worker.")


def read_share(text: str) -> tuple[int, int]:
    """Parse ``K/N``, the K-th of N shares of the shards, counted from 0."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    share = (int(match[1]), int(match[2])) if match else (1, 0)
    if share[0] >= share[1]:
        raise ConfigError(
            f"--shards-from {text}: expected K/N with K from 0 to N-1, such as 3/16. In a Slurm "
            "array that starts at 0: $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
        )
    return share
