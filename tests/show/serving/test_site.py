"""The live page beside `/metrics`: paths, methods, headers, names, and who may see it."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.config import PageAccess
from otel_torchdist.show.serving.clients import MAX_CLIENTS
from otel_torchdist.show.serving.visitors import Connection, is_local, names_this_machine, owner_of, user_of
from tests.show.serving.test_metrics_page import BODY_VALUE, get
from tests.support.worlds.live_pages import Served, seen_in, served, snapshot_of, stalled_world

NOBODY = 65534


@pytest.fixture(scope="module")
def page() -> Iterator[Served]:
    """A page that is served as by default, with a stall on it."""
    with served(snapshot_of(seen_in(stalled_world(4, (2,), 14)))) as page:
        yield page


def ask(page: Served, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """Send a request."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_paths(page: Served) -> None:
    """There are a page, its document and the metrics, and nothing else."""
    answer, body = ask(page, "/")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert body.startswith(b"<!DOCTYPE html>")
    answer, body = ask(page, "/live.json")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "application/json")
    assert json.loads(body)["run"]["stall"]["ranks"] == "2"
    assert ask(page, "/live.json?run=nonsense&ranks=%00&x=1")[0].status == 200
    for path in ("/favicon.ico", "/index.html", "/live.json/", "/../etc/passwd", "/%2e%2e/"):
        assert ask(page, path)[0].status == 404, path


def unpacked(body: bytes) -> bytes:
    """A body without its compression, which holds the second in which it was made."""
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


@pytest.mark.parametrize("access", list(PageAccess))
def test_metrics_are_the_same(access: PageAccess) -> None:
    """With every setting `/metrics` answers as without a page, whatever name it is asked under."""
    with served(None, access) as page, served(None, PageAccess.OFF) as without:
        for method, path, headers in (
            ("GET", "/metrics", {}),
            ("GET", "/metrics", {"Host": "evil.example"}),
            ("GET", "/metrics", {"Accept": "application/openmetrics-text", "Accept_Encoding": "gzip"}),
            ("GET", "/metrics?name[]=answer", {}),
            ("GET", "/metrics/", {}),
            ("POST", "/metrics", {}),
            ("HEAD", "/metrics", {}),
        ):
            one, body = ask(page, path, method, **headers)
            other, expected = ask(without, path, method, **headers)
            assert (one.status, unpacked(body)) == (other.status, unpacked(expected))
            assert [head for head in one.getheaders() if head[0] != "Date"] == [
                head for head in other.getheaders() if head[0] != "Date"
            ]


def test_off() -> None:
    """Without a page every path has the metrics, as it always was."""
    with served(None, PageAccess.OFF) as page:
        for path in ("/", "/live.json", "/metrics"):
            assert BODY_VALUE in ask(page, path)[1].decode()


@pytest.mark.parametrize("path", ["/", "/live.json"])
def test_it_is_read_only(page: Served, path: str) -> None:
    """Other methods are refused, and HEAD has the headers without the body."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "NONSENSE"):
        answer, _ = ask(page, path, method)
        assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    answer, body = ask(page, path, "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.getheader("Content-Length") or 0) > 0


@pytest.mark.parametrize("path", ["/", "/live.json", "/nothing"])
def test_headers(page: Served, path: str) -> None:
    """Nothing may be loaded from elsewhere, framed, guessed or stored, no script is inline by mere permission."""
    answer, _ = ask(page, path)
    policy = answer.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Set-Cookie") is None
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_many_visitors(page: Served) -> None:
    """Many visitors, and some that never finish their request, delay neither each other nor scrapes."""
    with ExitStack() as stack:
        for number in range(MAX_CLIENTS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=10))
            slow.sendall(b"GET /live.json HTTP/1.1\r\nHost: localhost\r\nX: "[: 20 + number % 20])
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: ask(page, "/live.json")[0].status, range(64)))
        assert answers == [200] * 64
        assert BODY_VALUE in get(page.port)


def test_compressed_on_request(page: Served) -> None:
    """A browser gets a fraction of the bytes, with the same contents."""
    plain, body = ask(page, "/live.json")
    answer, packed = ask(page, "/live.json", Accept_Encoding="gzip, deflate")
    assert plain.getheader("Content-Encoding") is None
    assert answer.getheader("Content-Encoding") == "gzip"
    assert gzip.decompress(packed) == body
    assert len(packed) < len(body) / 2


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", "", "::1", "a b"]
)
def test_other_names_are_refused(page: Served, host: str) -> None:
    """A site that lets its own name point here gets nothing: the browser sends that name."""
    for path in ("/", "/live.json"):
        answer, body = ask(page, path, Host=host)
        assert answer.status == 403
        assert b"OTEL_PYTHON_TORCHDIST_PAGE=on" in body
    with served(None, PageAccess.ON) as open_page:
        assert ask(open_page, "/live.json", Host=host)[0].status == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9464", "127.0.0.1:8080", "127.1.2.3", "[::1]:9464", "job.localhost:1"]
)
def test_names_of_this_machine(page: Served, host: str) -> None:
    """Names and addresses of the loopback interface are served at any port: a tunnel may begin at another one."""
    assert names_this_machine(host)
    assert ask(page, "/live.json", Host=host)[0].status == 200


def test_addresses_of_this_machine() -> None:
    """What is local is decided by address, also where IPv4 arrives as IPv6."""
    assert all(map(is_local, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_local, ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "", "nonsense", "0.0.0.0")))


def own_address() -> str:
    """An address of this machine that is not loopback; skips the test without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return probe.getsockname()[0]


def test_other_machines_are_refused() -> None:
    """`/metrics` may be served on all addresses; the page is not, unless somebody has said so."""
    address = own_address()
    snapshot = snapshot_of(seen_in(stalled_world(4, (2,), 14)))
    for access, status in ((PageAccess.LOOPBACK, 403), (PageAccess.ON, 200)):
        with served(snapshot, access, host="0.0.0.0") as page:
            assert BODY_VALUE in get(page.port, address)
            for path in ("/", "/live.json"):
                connection = http.client.HTTPConnection(address, page.port, timeout=10)
                connection.request("GET", path, headers={"Host": "localhost"})
                answer = connection.getresponse()
                assert answer.status == status
                assert (b"ssh -L" in answer.read()) == (status == 403)
                connection.close()


ASK_AS = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""


def python_as(user: int) -> list[str]:
    """A command line that runs Python code as another user."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable, "-c"]


def asked_by(user: int, address: str) -> dict[str, Any]:
    """The document that a process of another user gets."""
    command = [*python_as(user), ASK_AS, address]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_users_of_this_machine_see_their_own_jobs() -> None:
    """Each local user sees their own jobs; root sees all; with `on` everyone does."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can be another user")
    if subprocess.run([*python_as(NOBODY), ""], capture_output=True).returncode:
        pytest.skip("another user cannot run this Python")
    seen = seen_in(stalled_world(4, (2,), 14))
    snapshot = snapshot_of(seen, seen, owners=(NOBODY, 4711))
    with served(snapshot) as page:
        theirs = asked_by(NOBODY, f"{page.address}live.json?run=key1")
        assert ([run["owner"] for run in theirs["runs"]], theirs["hidden"]) == ([NOBODY], 1)
        assert theirs["run"]["item"]["owner"] == NOBODY
        assert asked_by(4712, f"{page.address}live.json")["runs"] == []
        assert len(json.loads(ask(page, "/live.json")[1])["runs"]) == 2
    with served(snapshot, PageAccess.ON) as page:
        assert len(asked_by(4712, f"{page.address}live.json")["runs"]) == 2


def no_netlink(*_: object) -> int | None:
    """A kernel that does not answer through netlink."""
    raise OSError("no such protocol")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_whose_connection_it_is(address: str) -> None:
    """The kernel's tables show the user of the other end, for both families; of no connection there is none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if family is socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    with socket.create_server((address, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2]) as client:
            accepted, peer = server.accept()
            accepted.close()
            here = {"LOCAL_ADDR": address, "LOCAL_PORT": str(server.getsockname()[1])}
            found = {"REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1]), **here}
            assert peer[1] == client.getsockname()[1]
            with socket.create_connection(server.getsockname()[:2]) as other:
                second, again = server.accept()
                there = {"REMOTE_ADDR": again[0], "REMOTE_PORT": str(again[1])}
                assert user_of({**there, **here}) == os.geteuid()
                ends = Connection(again[0], again[1], *server.getsockname()[:2])
                assert owner_of(ends, lookup=no_netlink) == owner_of(ends, tables=()) == os.geteuid()
                assert other.getsockname()[1] == again[1]
                second.close()
        assert user_of(found) is None, "the connection is closed"
    assert user_of({**found, "REMOTE_ADDR": "nonsense"}) is None
    assert user_of({}) is None


def test_a_port_that_two_users_share(tmp_path: Path) -> None:
    """In the kernel's tables a user's connection to another server is not taken for one to this page."""
    table = tmp_path / "tcp"
    loopback = "0100007F" if sys.byteorder == "little" else "7F000001"
    line = f"{{}}: {loopback}:C350 {loopback}:{{:04X}} 01 00000000:00000000 00:00000000 00000000 {{:5}} 0 7 1 0 20\n"
    table.write_text("  sl  local_address rem_address\n" + line.format(0, 8080, 4711) + line.format(1, 9464, 4712))
    ends = [Connection("127.0.0.1", 50_000, "127.0.0.1", port) for port in (8080, 9464, 9465)]
    found = {one.server_port: owner_of(one, no_netlink, [table]) for one in ends}
    assert found == {8080: 4711, 9464: 4712, 9465: None}


def test_users_of_other_namespaces_are_nobody(tmp_path: Path) -> None:
    """In a user namespace, users who are unknown there all have the id of `nobody`: none of them is believed."""
    ends = Connection("127.0.0.1", 1, "127.0.0.1", 2)
    for name, ids, found in (("all", f"0 0 {(1 << 32) - 1}", NOBODY), ("one", "0 1000 1", None)):
        (tmp_path / name).write_text(ids)
        assert owner_of(ends, lambda *_: NOBODY, user_map=tmp_path / name) == found


def test_failures_are_contained(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours is one answer without details, and the metrics go on."""
    monkeypatch.delenv("OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL", raising=False)
    snapshot, page.snapshot = page.snapshot, "no snapshot"  # type: ignore[assignment]
    try:
        answer, body = ask(page, "/live.json")
    finally:
        page.snapshot = snapshot
    assert answer.status == 500
    assert b"Traceback" not in body
    assert BODY_VALUE in get(page.port)
