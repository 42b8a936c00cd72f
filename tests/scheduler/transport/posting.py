"""Messages for posts, and clients and servers of gRPC that are not ours."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import msgpack
from etcd_server import eventually

from cdcmeta.scheduler import RemoveRequest, Token
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import DispatchTable, Envelope, Header, Heartbeat

HEADER = Header("owner", "c1", 1, 1, 1)
METHOD = "/cdcmeta.scheduler.v1.Post/Deliver"
WAIT_S = 20


def request(number, table="t"):
    return Envelope(HEADER, DispatchTable(RemoveRequest(table, Token(1, number))))


def heartbeat(number, to="c1"):
    return Envelope(HEADER._replace(to=to), Heartbeat((), number=number))


def numbers(arrived):
    """Return the numbers of the requests, and those of the heartbeats."""
    bodies = [envelope.body for _, envelope in arrived]
    requests = [b.request.token.number for b in bodies if isinstance(b, DispatchTable)]
    return requests, [b.number for b in bodies if isinstance(b, Heartbeat)]


def received(post, count):
    """Return at least so many messages that arrive."""
    found = []
    eventually(
        lambda: found.extend(post.receive()) or len(found) >= count,
        f"{count} messages",
        wait_s=WAIT_S,
    )
    return found


def exchanges(sender, receiver, within_s=WAIT_S):
    """Send until something arrives; return what it was."""

    def tried():
        sender.send(receiver.address, "feed", request(7))
        time.sleep(0.02)
        return receiver.receive()

    return eventually(tried, "a message that arrives", wait_s=within_s)


def call_of(*messages, version=1):
    """Return a call's body, made without our code."""
    packed = [[feed, encoding.encode(each)] for feed, each in messages]
    return msgpack.packb([version, packed])


@contextmanager
def foreign_client(address, credentials=None):
    """A plain client of gRPC; calls with bytes."""
    if credentials is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, credentials)
    with channel:
        yield channel.unary_unary(METHOD)


class ForeignServer:
    """A server of gRPC that notes calls, and answers only while it is let."""

    def __init__(self):
        self.calls, self.let = [], threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool, options=[("grpc.max_receive_message_length", -1)])
        handler = grpc.unary_unary_rpc_method_handler(self._answer)
        service, method = METHOD.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _answer(self, raw, context):
        self.calls.append(raw)
        self.let.wait(WAIT_S)
        return b""

    def arrived(self):
        """Return the messages of all calls so far."""
        every = [each for raw in list(self.calls) for each in msgpack.unpackb(raw)[1]]
        return [(feed, encoding.decode(message)) for feed, message in every]

    def close(self):
        self.let.set()
        self._server.stop(None).wait()
        self._pool.shutdown()
