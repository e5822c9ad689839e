"""Refusals: the replies of a site to requests that it does not fulfil.

The message of an error may quote a cell of a table. So only sentences about the request itself
leave a site; of any other error the centre gets a fixed text, and the site's own log has the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from undrift.errors import first_line
from undrift.federation.messages import LONGEST_TEXT, MessageError, Refusal, SiteMessage

Say = Callable[[str], None]
_LOG = logging.getLogger("undrift.federation")


class RequestError(MessageError):
    """Says what is wrong with a request, in a sentence without anything of the site's data."""


def log_at_site(text: str) -> None:
    """Write a line to the log of this process, where a site has no other log."""
    _LOG.warning("%s", text)


def refusal(site: str, error: Exception, say: Say) -> SiteMessage:
    """Return the reply to a request that has failed; `say` writes to the site's own log."""
    if isinstance(error, MessageError):
        return SiteMessage(Refusal(reason=first_line(error)[:LONGEST_TEXT]))
    say(f"A request has failed: {first_line(error)}.")
    reason = f"Site {site} needs data that fit the request, got an error, which its own log has"
    return SiteMessage(Refusal(reason=reason[:LONGEST_TEXT]))
