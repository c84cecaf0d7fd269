"""Pictures at URLs: from hosts that the server was told of, and from nowhere else."""

import ipaddress
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

import pytest
from running_server import running
from test_chat_pictures import IMAGE, JPEG, PNG, TEXT, chat, expected, user

from edgeformer.errors import RequestError
from edgeformer.runtime import load
from edgeformer.server import ServerOptions
from edgeformer.server.remote_pictures.fetching import FetchError, PictureFetcher
from edgeformer.server.remote_pictures.hosts import may_reach, read_hosts

SECONDS = 1.0
MOST = 100_000


class Answers(BaseHTTPRequestHandler):
    """A host of pictures, some of which it keeps back, or has none of."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        """Write nothing."""

    def send(self, content, status=200, **headers):
        self.send_response(status)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": str(len(content))} | given).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.headers.append(dict(self.headers))
        getattr(self, f"do_{self.path.strip('/').partition('?')[0].partition('.')[0]}")()

    def do_cat(self):
        self.send(PNG)

    def do_dog(self):
        self.send(JPEG)

    def do_moved(self):
        self.send(b"", 302, Location="/cat.png")

    def do_away(self):
        self.send(b"", 301, Location=self.server.elsewhere)

    def do_file(self):
        self.send(b"", 307, Location="file:///etc/passwd")

    def do_loop(self):
        self.send(b"", 302, Location="/loop")

    def do_text(self):
        self.send(b"no picture")

    def do_missing(self):
        self.send(PNG, 404)

    def do_large(self):
        self.send(PNG, Content_Length=str(MOST + 1))

    def do_endless(self):
        self.send(PNG, Content_Length=None)
        with pytest.raises(OSError):
            while True:
                self.wfile.write(bytes(10_000))

    def do_zipped(self):
        self.send(PNG, Content_Encoding="gzip")

    def do_short(self):
        self.send(PNG[:50], Content_Length="2000")

    def do_slow(self):
        self.send(PNG[:50], Content_Length="2000")
        self.server.wait()

    def do_trickle(self):
        for byte in b"HTTP/1.0 200 OK\r\n" * 10:
            self.wfile.write(bytes([byte]))
            self.server.wait(0.2)


@contextmanager
def host():
    """Run a host, and yield it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        over = threading.Event()
        server.asked, server.headers, server.elsewhere = [], [], ""
        server.name = f"127.0.0.1:{server.server_address[1]}"
        server.wait = lambda seconds=10.0: over.wait(seconds)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def pictures():
    with host() as server:
        yield server


def fetched(pictures, path, *entries):
    fetcher = PictureFetcher(read_hosts(entries or [pictures.name]), MOST, SECONDS)
    return fetcher.fetch(f"http://{pictures.name}{path}")


def test_a_listed_host_is_asked(pictures):
    assert fetched(pictures, "/cat.png?size=1") == PNG
    assert fetched(pictures, "/moved") == PNG
    assert pictures.asked == ["/cat.png?size=1", "/moved", "/cat.png"]
    assert pictures.headers[0].keys() == {"Host", "Accept", "Accept-Encoding", "User-Agent", "Connection"}


WRONG = {
    "/missing": "answers with status 404",
    "/loop": "sends it on more than 3 times",
    "/file": "sends it on to another place",
    "/large": "more than 100,000 bytes",
    "/endless": "more than 100,000 bytes",
    "/zipped": "sends it compressed",
    "/short": "the connection ended before the file did",
    "/slow": "did not arrive from '127.0.0.1' within 1 seconds",
    "/trickle": "did not arrive from '127.0.0.1' within 1 seconds",
}


@pytest.mark.parametrize("path", WRONG)
def test_what_does_not_arrive_is_said_in_time(pictures, path):
    start = time.monotonic()
    with pytest.raises(FetchError, match=WRONG[path]):
        fetched(pictures, path)
    assert time.monotonic() - start < 2 * SECONDS


def test_a_redirect_leads_to_no_other_host(pictures):
    with host() as other:
        for target in (f"http://{other.name}/cat.png", f"//{other.name}/cat.png", "http://127.0.0.1/cat.png"):
            pictures.elsewhere = target
            with pytest.raises(FetchError, match="sends it on to another place"):
                fetched(pictures, "/away", pictures.name, other.name)
        assert other.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://HOST@example.org/cat.png", "http://example.org@HOST/cat.png", "http://HOST.example.org/cat.png",
        "http://example.org/HOST", "http://127.0.0.1/cat.png", "http://127.0.0.1:1/cat.png", "http://HOST/a b",
        "http://HOST\\@example.org/", "http://HOST/\r\nX-More: 1", "ftp://HOST/cat.png", "http://[::1/", "http:///cat",
        "http://2130706433/", "http://HOST/" + "a" * 5000, "http://HOST:port/",
    ],
)  # fmt: skip
def test_other_urls_are_refused_and_nobody_is_asked(pictures, url):
    fetcher = PictureFetcher(read_hosts([pictures.name]), MOST, SECONDS)
    with (
        patch.object(socket.socket, "connect", side_effect=AssertionError("it was asked")),
        pytest.raises(FetchError, match="fetches no pictures from|it is no URL"),
    ):
        fetcher.fetch(url.replace("HOST", pictures.name))


def test_a_name_leads_to_no_private_address():
    private = [
        "10.0.0.5", "127.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0", "224.0.0.1", "100.64.0.1", "::1",
        "fd00::1", "fe80::1", "::ffff:10.0.0.5", "64:ff9b::a00:5", "2002:a00:5::1",
    ]  # fmt: skip
    fetcher = PictureFetcher(read_hosts(["pictures.example"]), MOST, SECONDS)
    for address in private:
        assert not may_reach("pictures.example", ipaddress.ip_address(address))
        assert may_reach(address, ipaddress.ip_address(address))  # where it is listed itself
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, 443)) for each in ("93.184.216.34", address)]
        with (
            patch.object(socket, "getaddrinfo", return_value=found),
            patch.object(socket.socket, "connect", side_effect=AssertionError("it was asked")),
            pytest.raises(FetchError, match="an address that is not public"),
        ):
            fetcher.fetch("https://pictures.example/cat.png")
    assert may_reach("pictures.example", ipaddress.ip_address("93.184.216.34"))
    assert may_reach("pictures.example", ipaddress.ip_address("2606:2800:220:1:248:1893:25c8:1946"))


def test_an_address_is_looked_up_once(pictures):
    """The connection is made to the address that was looked at: the name may lead elsewhere a moment later."""
    port, real = int(pictures.name.partition(":")[2]), socket.getaddrinfo
    with patch.object(
        socket, "getaddrinfo", side_effect=lambda name, *more, **by: real("127.0.0.1", *more, **by)
    ) as asked:
        fetcher = PictureFetcher(read_hosts([f"localhost:{port}"]), MOST, SECONDS)
        assert fetcher.fetch(f"http://localhost:{port}/cat.png") == PNG
    assert asked.call_count == 1


def test_hosts_say_by_which_scheme_they_are_reached():
    schemes = {entry: read_hosts([entry])[0].schemes for entry in (
        "example.org", "https://example.org", "http://example.org:8080", "10.0.0.5", "localhost", "[::1]:9000",
    )}  # fmt: skip
    assert schemes == {
        "example.org": {"https"}, "https://example.org": {"https"}, "http://example.org:8080": {"http"},
        "10.0.0.5": {"https"}, "localhost": {"http", "https"}, "[::1]:9000": {"http", "https"},
    }  # fmt: skip
    for entry in (
        "",
        "*",
        "*.example.org",
        "example.org/path",
        "ftp://example.org",
        "a@example.org",
        "example.org:port",
    ):
        with pytest.raises(RequestError, match="picture_hosts has"):
            ServerOptions(picture_hosts=(entry,))


@pytest.fixture
def by_tls(pictures, tmp_path):
    """Let the host speak TLS, and return its certificate, which it has signed itself for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("2026-11-29: needs openssl, to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=pictures"]
    line += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(line, capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    pictures.socket = context.wrap_socket(pictures.socket, server_side=True)
    return certificate


def test_https_is_for_hosts_with_a_certificate(pictures, by_tls, monkeypatch):
    port = pictures.server_address[1]

    def fetch(host):
        return PictureFetcher(read_hosts([f"{host}:{port}"]), MOST, SECONDS).fetch(f"https://{host}:{port}/cat.png")

    with pytest.raises(FetchError, match="could not be fetched from '127.0.0.1': .*certificate"):
        fetch("127.0.0.1")  # which nobody trusts
    monkeypatch.setenv("SSL_CERT_FILE", str(by_tls))
    assert fetch("127.0.0.1") == PNG
    with pytest.raises(FetchError, match="could not be fetched from 'localhost': .*certificate"):
        fetch("localhost")  # the certificate is of another name
    assert pictures.asked == ["/cat.png"]


@pytest.fixture
def server(smolvlm_bundle, pictures):
    options = {"picture_hosts": (pictures.name,), "picture_seconds": SECONDS, "max_picture_bytes": MOST}
    with running([smolvlm_bundle], **options) as server:
        yield server


def at(pictures, path):
    return {"type": "image_url", "image_url": {"url": f"http://{pictures.name}{path}"}}


def test_three_apis_fetch_what_is_listed(server, pictures, smolvlm_bundle):
    wanted = expected(load(smolvlm_bundle, "cpu", 1), [IMAGE, IMAGE, TEXT], [PNG, JPEG])
    answer = chat(server, [user(at(pictures, "/cat.png"), at(pictures, "/dog.jpg"))]).json()
    assert answer["choices"][0]["message"]["content"] == wanted.text
    places = [f"http://{pictures.name}{path}" for path in ("/cat.png", "/dog.jpg")]
    blocks = [{"type": "image", "source": {"type": "url", "url": place}} for place in places]
    found = server.post("/v1/messages/count_tokens", {"messages": [user(*blocks)]}).json()
    assert found == {"input_tokens": wanted.prompt_tokens}
    parts = [{"type": "input_image", "image_url": place} for place in places]
    item = {"role": "user", "content": [*parts, {"type": "input_text", "text": TEXT["text"]}]}
    answer = server.post("/v1/responses", {"input": [item], "max_output_tokens": 8}).json()
    assert answer["usage"]["input_tokens"] == wanted.prompt_tokens


def test_errors_name_the_place_in_the_request(server, pictures):
    for part, said in (
        (at(pictures, "/text"), "is not a picture"),
        (at(pictures, "/large"), "100,000 bytes"),
        (at(pictures, "/slow"), "did not arrive"),
        ({"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}, "from 'https://example.org'"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "reads no files for its clients"),
    ):
        answer = chat(server, [user(part)])
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages.0.content.0.image_url.url"), error
        assert error["message"].startswith("messages.0.content.0.image_url.url") and said in error["message"], error
    asked = len(pictures.asked)
    assert chat(server, [user(*[at(pictures, "/cat.png")] * 17)]).status_code == 400  # by their number, before any
    assert len(pictures.asked) == asked


def test_texts_do_not_wait_for_slow_hosts(server, pictures):
    threads = [threading.Thread(target=chat, args=(server, [user(at(pictures, "/slow"))])) for _ in range(8)]
    for thread in threads:
        thread.start()
    while pictures.asked.count("/slow") < len(threads):
        time.sleep(0.01)
    start = time.monotonic()
    assert chat(server, [{"role": "user", "content": "hello"}], max_tokens=1).status_code == 200
    assert time.monotonic() - start < SECONDS / 2
    for thread in threads:
        thread.join()
