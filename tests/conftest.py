"""Shapes and types that annotations promise are enforced while tests run."""

from jaxtyping import install_import_hook

install_import_hook(["now_builder", "leaderboard", "pc2_baseline"], "beartype.beartype")
