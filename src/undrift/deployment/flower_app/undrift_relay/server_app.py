"""The relay at the centre: it carries requests to nodes and brings their replies.

It connects to the socket of the process that runs the experiment and does what that asks for, until
the connection ends. A request names the state that it starts from, so it may be repeated: it is
sent again to a node that answers with an error or has started anew, until the deadline. Sites
are known by their public keys, which the SuperLink has checked.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from undrift_relay.frames import receive_frame, send_frame
from undrift_relay.parcels import unwrap, wrap

POLL = 0.2  # seconds between two looks for replies
LOOK = 2.0  # seconds between two looks at the nodes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do what the centre asks for until it hangs up."""
    with socket.socket(socket.AF_UNIX) as centre:
        centre.connect(str(context.run_config["socket"]))
        while True:
            try:
                order = json.loads(receive_frame(centre))
                if order["do"] == "sites":
                    send_frame(centre, json.dumps(list(online(grid))).encode())
                else:
                    requests = {key: receive_frame(centre) for key in order["keys"]}
                    Asking(grid, centre, requests, order["seconds"]).run()
            except ConnectionError:
                return


class ConnectedNode(NamedTuple):
    """Says which node has a key, and since when it is there."""

    id: int
    since: str


def online(grid: Grid) -> dict[str, ConnectedNode]:
    """Return the nodes that are there, by their public keys."""
    return {
        key_text(node.public_key): ConnectedNode(node.node_id, node.last_activated_at)
        for node in grid.get_nodes()
    }


def key_text(pem: bytes) -> str:
    """Return a public key as the files of the centre have it."""
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    text: str = serialization.load_pem_public_key(pem).public_bytes(*openssh).decode()
    return text


@dataclass
class Asking:
    """Sends a request to the node of each key and hands on what comes back, until a deadline."""

    grid: Grid
    centre: socket.socket
    requests: dict[str, bytes]
    seconds: float
    waiting: dict[str, str] = field(default_factory=dict)  # keys by message
    asked: dict[str, ConnectedNode] = field(default_factory=dict)  # nodes by key, as they were then
    errors: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Hand on a header and bytes for each reply, at the end a header without a key."""
        end, look = time.monotonic() + self.seconds, 0.0
        unanswered = set(self.requests)
        while unanswered and time.monotonic() < end:
            if time.monotonic() >= look:
                self.send(unanswered, end)
                look = time.monotonic() + LOOK
            waiting = list(self.waiting)
            for reply in self.grid.pull_messages(waiting) if waiting else []:
                key = self.waiting.pop(reply.metadata.reply_to_message_id, None)
                if key in unanswered and self.hand_on(key, reply):
                    unanswered.discard(key)
            time.sleep(POLL if unanswered else 0)
        send_frame(self.centre, json.dumps({"key": None, "errors": self.errors}).encode())

    def send(self, unanswered: set[str], end: float) -> None:
        """Ask the nodes that have no request, or have started anew since they got it."""
        there = online(self.grid)
        busy = set(self.waiting.values())
        for key in sorted(unanswered & there.keys()):
            node = there[key]
            if key in busy and self.asked[key] == node:
                continue
            content = wrap(self.requests[key], seconds=max(1.0, end - time.monotonic()))
            message = Message(content, dst_node_id=node.id, message_type=MessageType.QUERY)
            for sent in self.grid.push_messages([message]):
                if sent is not None:
                    self.waiting[sent] = key
            self.asked[key] = node

    def hand_on(self, key: str, reply: Message) -> bool:
        """Return whether the reply is one; an error is noted, and the node is asked again."""
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason)
            data = unwrap(reply.content)
        except ValueError as error:
            self.errors[key] = str(error)[:500]
            return False
        send_frame(self.centre, json.dumps({"key": key}).encode())
        send_frame(self.centre, data)
        return True
