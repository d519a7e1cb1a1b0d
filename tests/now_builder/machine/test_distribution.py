"""Parsing the share of a stage that one of several machines does."""

import pytest

from now_builder.errors import ConfigError
from now_builder.machine.distribution import read_share


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/4", "a/b", "1/0"])
def test_an_invalid_share_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="K/N"):
        read_share(text)
    assert read_share("0/16") == (0, 16)
