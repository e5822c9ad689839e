"""The relay at a site: it hands a request to the resident site process and returns its reply.

Flower starts a process for each message, so it must start quickly; model, data and state are in the
site process, behind a Unix socket that the node's configuration names.
"""

from __future__ import annotations

import socket
import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from undrift_relay.frames import receive_frame, send_frame
from undrift_relay.parcels import unwrap, wrap

RETRY = 0.5  # seconds until a site process that is gone is asked again

app = ClientApp()


@app.query()
def relay(message: Message, context: Context) -> Message:
    """Return the site's reply to a request."""
    patience = float(message.content["facts"]["seconds"])
    request = unwrap(message.content)
    reply = ask(str(context.node_config["socket"]), request, time.monotonic() + patience)
    return Message(wrap(reply), reply_to=message)


def ask(path: str, request: bytes, end: float) -> bytes:
    """Return the reply of the site process; one that is gone may be starting again."""
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(max(1.0, end - time.monotonic()))
                connection.connect(path)
                send_frame(connection, request)
                reply: bytes = receive_frame(connection)
                return reply
        except OSError:
            if time.monotonic() + RETRY >= end:
                raise
            time.sleep(RETRY)
