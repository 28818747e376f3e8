"""A proxy between an executor and the HTTP API that loses responses after the request was carried out."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

_SECONDS = 60.0


class Lossy(ThreadingHTTPServer):
    """Forwards requests and loses the first response of each verb; of `claim` one that started a run."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_SECONDS, trust_env=False)
        self.lost: set[str] = set()
        self.guard = threading.Lock()

    def loses(self, verb: str, response: httpx.Response) -> bool:
        if verb not in {"claim", "finish", "heartbeat"} or (verb == "claim" and not response.json().get("started")):
            return False
        with self.guard:
            first = verb not in self.lost
            self.lost.add(verb)
        return first


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def way(self) -> Lossy:
        assert isinstance(self.server, Lossy)
        return self.server

    def do_POST(self) -> None:
        self._pass_on()

    def do_GET(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {"content-type": self.headers.get("content-type", "application/json")}
        response = self.way.client.request(self.command, self.path, content=body, headers=headers)
        if self.way.loses(self.path.rpartition(":")[2], response):
            self.close_connection = True
            return
        self.send_response(response.status_code)
        self.send_header("content-type", response.headers.get("content-type", "text/plain"))
        if response.status_code != 204:
            self.send_header("content-length", str(len(response.content)))
        self.end_headers()
        self.wfile.write(response.content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def losing_answers(port: int) -> Generator[Lossy]:
    """Start a proxy before a port that loses responses, as long as the block."""
    way = Lossy(port)
    serving = threading.Thread(target=way.serve_forever, name="lossy")
    serving.start()
    try:
        yield way
    finally:
        way.shutdown()
        serving.join()
        way.server_close()
        way.client.close()
