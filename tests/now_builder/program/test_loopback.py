"""The server behind pages for one person."""

import http.client
from urllib.parse import urlsplit

import pytest

from now_builder.program.loopback import LoopbackHandler, listening


class Broken(LoopbackHandler):
    """A handler that raises a chosen error."""

    error = OSError

    def do_GET(self):  # noqa: N802 - name of the base class
        """Fail."""
        raise self.error("while answering")


@pytest.mark.parametrize(("error", "reported"), [(BrokenPipeError, False), (ValueError, True)])
def test_a_browser_that_hangs_up_leaves_no_word_on_the_terminal(error, reported, capfd):
    with listening(Broken, error=error) as url:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=10)
        connection.request("GET", parts.path)
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()
        connection.close()
    assert ("while answering" in capfd.readouterr().err) == reported
