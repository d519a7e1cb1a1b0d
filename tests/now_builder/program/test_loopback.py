"""The server behind pages for one person."""

import http.client
from urllib.parse import urlsplit

import pytest

from now_builder.program.loopback import LoopbackHandler, listening


class Broken(LoopbackHandler):
    """A handler that fails as it is told to."""

    error = OSError

    def do_GET(self):  # noqa: N802 - the base's name
        """Fail."""
        raise self.error("while answering")


@pytest.mark.parametrize(("error", "told"), [(BrokenPipeError, False), (ValueError, True)])
def test_a_browser_that_hangs_up_leaves_no_word_on_the_terminal(error, told, capfd):
    with listening(Broken, error=error) as url:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=10)
        connection.request("GET", parts.path)
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()
        connection.close()
    assert ("while answering" in capfd.readouterr().err) == told
