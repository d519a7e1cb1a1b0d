"""Shares of a stage that several machines do."""

import pytest

from now_builder.errors import ConfigError
from now_builder.machine.distribution import read_share


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/4", "a/b", "1/0"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="K/N"):
        read_share(text)
    assert read_share("0/16") == (0, 16)
