"""A proxy in front of a server of CouchDB's interface, which does to requests what networks do."""

import json
import threading
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

WAIT_S = 20.0


class Between:
    """Passes requests on, but for those that a fault is planned for; `requests` has all."""

    def __init__(self, url, tls=None):
        self.target = urlsplit(url)
        self.requests = []
        self._faults = []
        self._lock = threading.Lock()
        self.over = threading.Event()
        between = self

        class Handler(_Handler):
            proxy = between

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # the client may hang up
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next(self, fault, what="", *, times=1):
        """Let the next requests whose "METHOD path" contains `what` have this fault."""
        with self._lock:
            self._faults += [(what, fault)] * times

    def fault_of(self, line):
        with self._lock:
            self.requests.append(line)
            for at, (what, fault) in enumerate(self._faults):
                if what in line:
                    del self._faults[at]
                    return fault
        return passed


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.fault_of(f"{self.command} {self.path}")(self)

    do_GET = do_PUT = do_POST = do_DELETE = _answer

    def forward(self, body=None):
        target = self.proxy.target
        connection = HTTPConnection(target.hostname, target.port, timeout=WAIT_S)
        headers = {name: self.headers[name] for name in self.headers if name != "Host"}
        headers.pop("Content-Length", None)
        connection.request(self.command, self.path, self.body if body is None else body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def reply(self, status, body, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# --- faults: each gets the handler of the request ---


def passed(handler):
    handler.reply(*handler.forward())


def answers(status, body=b'{"error":"planned","reason":"a test"}', headers=()):
    return lambda handler: handler.reply(status, body, headers)


def closes(handler):
    """End the connection instead of an answer."""
    handler.close_connection = True


def loses(handler):
    """Do what is asked, and lose the answer."""
    handler.forward()
    handler.close_connection = True


def passes_and_closes(handler):
    handler.reply(*handler.forward(), [("Connection", "close")])


def hangs(handler):
    handler.proxy.over.wait(WAIT_S)
    handler.close_connection = True


def trickles(handler):
    """Send a body that seems never to end, a byte at a time."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(500):
        if not handler.proxy.over.wait(0.02):
            handler.wfile.write(b" ")
    handler.close_connection = True


class Held:
    """Holds a request until it is let go; `came` is set when it is here."""

    def __init__(self):
        self.came, self.go = threading.Event(), threading.Event()

    def __call__(self, handler):
        self.came.set()
        assert self.go.wait(WAIT_S)
        with suppress(OSError):
            passed(handler)


def unchecked(handler):
    """Write a local document whatever its `_rev` is, as CouchDB 2 and 3 do."""
    connection = HTTPConnection(handler.proxy.target.hostname, handler.proxy.target.port)
    connection.request("GET", handler.path)
    before = json.loads(connection.getresponse().read())
    connection.close()
    doc = {**json.loads(handler.body), "_rev": before["_rev"]}
    handler.reply(*handler.forward(json.dumps(doc).encode()))
