"""Public data sets over HTTP: a real server on this machine, with all that can go wrong."""

import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.common.errors import FedsimError, ScenarioError
from fedsim.common.streams import Streams
from fedsim.lab.fetching import catalogue, transfer
from fedsim.lab.fetching.catalogue import RemoteDataset, find_dataset, read_catalogue
from fedsim.lab.fetching.fetch import DOWNLOADS, FetchPlan, fetch, plan_fetch
from fedsim.lab.fetching.transfer import DownloadError
from fedsim.records.lock import FolderInUseError, locked
from tests.children import popen, wait_until

CONTENT = Streams(3).generator("tests/fetching").bytes(300_000)
ROOT = Path(__file__).resolve().parents[2]


class _Handler(BaseHTTPRequestHandler):
    """Sends the contents of its server, with ranges, as the server's settings say."""

    server: "Server"

    def do_GET(self) -> None:
        told = self.server
        name = self.path.rpartition("/")[2]
        told.asked.append((name, self.headers.get("Range")))
        if name in told.redirects:
            self.send_response(302)
            self.send_header("Location", told.redirects[name])
            self.end_headers()
            return
        if name not in told.contents:
            self.send_error(404)
            return
        content = told.contents[name]
        start = 0
        wanted = self.headers.get("Range")
        if wanted is not None and told.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            end = len(content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        else:
            self.send_response(200)
        rest = content[start:]
        if told.says_length:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        limit = told.cuts.pop(0) if told.cuts else len(rest)
        self.wfile.write(rest[:limit])
        self.wfile.flush()
        if told.hold is not None and limit < len(rest):
            told.hold.wait()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """A server of files on this machine.

    Attributes:
        contents: name -> content.
        redirects: name -> address.
        cuts: bytes after which each further answer ends.
        ranges: whether it sends parts of files.
        says_length: whether it says the size of an answer.
        hold: an event for which an answer that was cut waits before it ends; None: it ends.
        asked: name and range of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.cuts: list[int] = []
        self.ranges = True
        self.says_length = True
        self.hold: threading.Event | None = None
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        if found.hold is not None:
            found.hold.set()
        found.shutdown()
        thread.join()


def described(content: bytes, name: str = "plain.bin", **entries: Any) -> RemoteDataset:
    """A data set of one file with the checksum of ``content``."""
    file = {
        "name": name,
        "urls": [f"http://127.0.0.1:9/{name}"],
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        **entries,
    }
    texts = {"title": "A set", "licence": "CC0", "page": "http://p", "use": "so"}
    return RemoteDataset(folder="set", files=[file], **texts)


def planned(server: Server, dataset: RemoteDataset, root: Path) -> FetchPlan:
    return plan_fetch("set", dataset, root, server.address)


def fetched(server: Server, dataset: RemoteDataset, root: Path) -> None:
    fetch(planned(server, dataset, root), lambda name, size, whole: None)


def refusal(server: Server, dataset: RemoteDataset, root: Path) -> str:
    with pytest.raises(FedsimError) as caught:
        fetched(server, dataset, root)
    return str(caught.value)


def test_the_catalogue_is_whole_and_names_web_addresses_alone() -> None:
    datasets = read_catalogue()
    assert {"mnist", "fashion", "emnist", "cifar10", "femnist", "shakespeare"} <= datasets.keys()
    for dataset in datasets.values():
        assert bool(dataset.files) != bool(dataset.by_hand)
        assert not Path(dataset.folder).is_absolute()
        assert ".." not in dataset.folder
        for file in dataset.files:
            assert len(file.checksum) == {"md5": 32, "sha256": 64}[file.algorithm]
            for url in file.urls:
                transfer.check_address(url)
    with pytest.raises(ScenarioError, match=r"'mnits' is unknown; .*did you mean 'mnist'"):
        find_dataset("mnits")


def test_the_checksums_of_fashion_mnist_are_those_of_its_files(data_folder: Path) -> None:
    dataset = find_dataset("fashion")
    if not (data_folder / dataset.folder).is_dir():
        pytest.skip("Fashion-MNIST is not there")
    plan = plan_fetch("fashion", dataset, data_folder)
    assert [planned.state for planned in plan.files] == ["there"] * 4


def test_a_file_is_fetched_checked_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    dataset = described(CONTENT)
    fetched(server, dataset, tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT
    assert not (tmp_path / DOWNLOADS / "set").exists()
    fetched(server, dataset, tmp_path)
    assert server.asked == [("plain.bin", None)]
    receipt = json.loads((tmp_path / "set" / "fetched.json").read_text())["files"]["plain.bin"]
    assert receipt["bytes"] == len(CONTENT)
    (tmp_path / "set" / "plain.bin").write_bytes(CONTENT[:-1])
    assert planned(server, dataset, tmp_path).files[0].state == "missing"
    (tmp_path / "set" / "fetched.json").unlink()
    assert "is there, and is not the published file" in refusal(server, dataset, tmp_path)
    (tmp_path / "set" / "plain.bin").write_bytes(CONTENT)  # put there by hand
    assert planned(server, dataset, tmp_path).files[0].state == "there"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_goes_on_where_it_ended(
    server: Server, tmp_path: Path, ranges: bool
) -> None:
    server.contents["plain.bin"] = CONTENT
    server.ranges = ranges
    server.cuts = [100_000]
    fetched(server, described(CONTENT), tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT
    assert server.asked == [("plain.bin", None), ("plain.bin", "bytes=100000-")]


def test_a_server_that_never_gets_to_the_end_leaves_a_part_for_later(
    server: Server, tmp_path: Path
) -> None:
    server.contents["plain.bin"] = CONTENT
    server.cuts = [100_000, 0]
    message = refusal(server, described(CONTENT), tmp_path)
    assert "it ended after 100 kB of 300 kB" in message
    assert "100 kB are kept in" in message
    assert planned(server, described(CONTENT), tmp_path).download_bytes == 200_000
    fetched(server, described(CONTENT), tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT


def test_a_connection_that_breaks_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    server.cuts = [100_000, 50_000]
    fetched(server, described(CONTENT), tmp_path)
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_wrong_checksum_keeps_nothing(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    message = refusal(server, described(CONTENT), tmp_path)
    assert f"published is {hashlib.sha256(CONTENT).hexdigest()}" in message
    assert "By hand: download http" in message
    assert [path.name for path in tmp_path.rglob("*.*")] == []


def test_a_part_of_another_file_is_dropped_and_fetched_anew(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    part = tmp_path / DOWNLOADS / "set" / "plain.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    fetched(server, described(CONTENT), tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT
    assert server.asked[-1] == ("plain.bin", None)


def test_more_bytes_than_published_are_not_written(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT + b"more"
    assert "it has 300004 bytes; 300000 are expected" in refusal(
        server, described(CONTENT), tmp_path
    )
    server.says_length = False
    assert "it sends more than 300000 bytes" in refusal(server, described(CONTENT), tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == []


def test_the_size_of_a_file_may_be_unknown(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    server.says_length = False
    fetched(server, described(CONTENT, bytes=None, most=10**6), tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT


def test_the_next_address_is_asked_if_one_fails(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    urls = [f"{server.address}/gone.bin", f"{server.address}/plain.bin"]
    dataset = described(CONTENT, urls=urls)
    fetch(plan_fetch("set", dataset, tmp_path), lambda name, size, whole: None)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"]
)
def test_redirects_to_other_than_the_web_are_not_followed(
    server: Server, tmp_path: Path, target: str
) -> None:
    server.redirects["plain.bin"] = target
    assert "cannot be downloaded" in refusal(server, described(CONTENT), tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == []


def test_a_redirect_on_the_web_is_followed(server: Server, tmp_path: Path) -> None:
    server.redirects["plain.bin"] = f"{server.address}/there.bin"
    server.contents["there.bin"] = CONTENT
    fetched(server, described(CONTENT), tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path) -> None:
    """Nothing listens on port 9; then the file is put there as the message says."""
    dataset = described(CONTENT)
    with pytest.raises(DownloadError) as caught:
        fetch(plan_fetch("set", dataset, tmp_path), lambda name, size, whole: None)
    target = tmp_path / DOWNLOADS / "set" / "plain.bin.part"
    assert f"download http://127.0.0.1:9/plain.bin elsewhere and save it as '{target}'" in str(
        caught.value
    )
    target.write_bytes(CONTENT)
    fetch(plan_fetch("set", dataset, tmp_path), lambda name, size, whole: None)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT


def test_two_at_a_time_do_not_mix(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    downloads = tmp_path / DOWNLOADS / "set"
    downloads.mkdir(parents=True)
    with locked(downloads), pytest.raises(FolderInUseError):
        fetched(server, described(CONTENT), tmp_path)


# Archives


def packed_tar(*entries: tuple[str, bytes | str]) -> bytes:
    """A ``.tar.gz``; an entry whose content is a text is a symbolic link to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type = tarfile.SYMTYPE
                entry.linkname = content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def packed_zip(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def of_archive(content: bytes, form: str, **members: Any) -> RemoteDataset:
    named = {"a.bin": {"source": "in/a.bin", "most": 400_000}} | members
    return described(content, "set.pack", form=form, members=named)


PACKED = {
    "tar": packed_tar(
        ("../../outside.bin", b"evil"), ("/tmp/outside.bin", b"evil"), ("in/a.bin", CONTENT)
    ),
    "zip": packed_zip(("../../outside.bin", b"evil"), ("in/a.bin", CONTENT)),
    "lzma": lzma.compress(CONTENT, lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("form", PACKED)
def test_only_named_files_are_unpacked(server: Server, tmp_path: Path, form: str) -> None:
    server.contents["set.pack"] = PACKED[form]
    root = tmp_path / "deep" / "root"
    fetched(server, of_archive(PACKED[form], form), root)
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(map(str, files)) == ["deep/root/set/a.bin", "deep/root/set/fetched.json"]
    assert (root / "set" / "a.bin").read_bytes() == CONTENT


BOMB = bytes(500_000)


@pytest.mark.parametrize(
    ("form", "content", "says"),
    [
        ("tar", packed_tar(("in/a.bin", "/etc/passwd")), "is a link or no file"),
        ("tar", packed_tar(("in/b.bin", CONTENT)), "has no entry 'in/a.bin'"),
        ("tar", packed_tar(("in/a.bin", BOMB)), "unpacks to more than 400 kB"),
        ("tar", packed_tar(("in/a.bin", CONTENT))[:1000], "is a damaged archive"),
        ("zip", packed_zip(("in/a.bin", BOMB)), "unpacks to more than 400 kB"),
        ("zip", packed_zip(("in/b.bin", CONTENT)), "has 0 entries 'in/a.bin'"),
        ("zip", b"PK no archive", "is a damaged archive"),
        ("lzma", lzma.compress(BOMB, lzma.FORMAT_ALONE), "unpacks to more than 400 kB"),
        ("lzma", lzma.compress(CONTENT, lzma.FORMAT_ALONE)[:1000], "is a damaged archive"),
    ],
)
def test_hostile_archives_are_refused_and_leave_nothing(
    server: Server, tmp_path: Path, form: str, content: bytes, says: str
) -> None:
    server.contents["set.pack"] = content
    message = refusal(server, of_archive(content, form), tmp_path)
    assert says in message
    assert not (tmp_path / "set" / "a.bin").exists()
    assert not [*tmp_path.rglob("*.writing")]


def test_a_member_of_another_size_is_refused(server: Server, tmp_path: Path) -> None:
    content = PACKED["zip"]
    server.contents["set.pack"] = content
    sized = {"a.bin": {"source": "in/a.bin", "bytes": 300_001}}
    assert "unpacks to 300000 bytes; 300001 are expected" in refusal(
        server, of_archive(content, "zip", **sized), tmp_path
    )


# The verb


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue has a small data set, ``set``."""
    entries = {"set": described(CONTENT), **read_catalogue()}
    monkeypatch.setattr(catalogue, "read_catalogue", lambda: entries)


def called(*words: object) -> Any:
    return CliRunner().invoke(main, ["data", "fetch", *map(str, words)])


@pytest.mark.usefixtures("known")
def test_the_verb_says_licence_size_and_host_first_and_ends_with_0(
    server: Server, tmp_path: Path
) -> None:
    words = ("set", "--root", tmp_path, "--from", server.address)
    said = called(*words, "--dry-run")
    assert said.exit_code == 0
    for line in ("licence: CC0", f"from: 127.0.0.1:{server.server_port}", "size: 300 kB to"):
        assert line in said.stdout
    assert (server.asked, [*tmp_path.iterdir()]) == ([], [])
    failed = called(*words)
    assert failed.exit_code == 1
    assert "licence: CC0" in failed.stdout
    assert "HTTP status 404" in failed.stderr
    server.contents["plain.bin"] = CONTENT
    assert f"written to {tmp_path}/set" in called(*words).stdout
    assert "it is there" in called(*words).stdout
    quiet = called(*words, "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")


@pytest.mark.usefixtures("known")
def test_mistakes_end_with_2(tmp_path: Path) -> None:
    for words, says in (
        (("mnits",), "did you mean 'mnist'"),
        (("flair",), "has to be downloaded by hand"),
        (("set", "--from", "file:///etc"), "--from is 'file:///etc'; allowed are addresses"),
    ):
        failed = called(*words, "--root", tmp_path)
        assert failed.exit_code == 2, failed.output
        assert says in failed.stderr


_CHILD = """
import json, sys
from pathlib import Path
from fedsim.lab.fetching.catalogue import RemoteDataset
from fedsim.lab.fetching.fetch import fetch, plan_fetch
dataset, root, mirror = RemoteDataset(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
fetch(plan_fetch("set", dataset, root, mirror), lambda name, size, whole: None)
"""


def child(dataset: RemoteDataset, root: Path, server: Server) -> list[Any]:
    return [sys.executable, "-c", _CHILD, dataset.model_dump_json(), root, server.address]


def test_killed_in_the_middle_it_goes_on(server: Server, tmp_path: Path) -> None:
    server.contents["plain.bin"] = CONTENT
    server.cuts = [100_000]
    server.hold = threading.Event()
    dataset = described(CONTENT)
    process = popen(child(dataset, tmp_path, server), cwd=ROOT)
    part = tmp_path / DOWNLOADS / "set" / "plain.bin.part"
    wait_until(lambda: part.is_file() and part.stat().st_size > 0, process)
    process.kill()
    process.wait()
    size = part.stat().st_size
    assert 0 < size <= 100_000
    server.hold.set()
    fetched(server, dataset, tmp_path)
    assert (tmp_path / "set" / "plain.bin").read_bytes() == CONTENT
    assert server.asked[-1] == ("plain.bin", f"bytes={size}-")


def test_a_disk_without_room_is_refused_before_anything_is_sent(
    server: Server, tmp_path: Path
) -> None:
    free = shutil.disk_usage(tmp_path).free
    dataset = described(CONTENT, bytes=None, most=min(10**13, 2 * free))
    if dataset.files[0].limit <= free:
        pytest.skip("this disk is larger than any data set")
    assert "make room there, or give another --root" in refusal(server, dataset, tmp_path)
    assert server.asked == []


def test_a_disk_that_fills_up_on_the_way_keeps_the_part(server: Server, tmp_path: Path) -> None:
    """On a disk of 200 kB, which a name space of its own has to mount; the size is unknown."""
    server.contents["plain.bin"] = CONTENT
    server.says_length = False
    dataset = described(CONTENT, bytes=None, most=1_000_000)
    command = child(dataset, tmp_path, server)
    code = _CHILD.replace("import json, sys", "import json, shutil, sys\n").replace(
        "fetch(plan_fetch",
        "shutil.disk_usage = lambda path: type('D', (), {'free': 10**9})\nfetch(plan_fetch",
    )
    (tmp_path.parent / "child.py").write_text(code)
    arguments = [sys.executable, tmp_path.parent / "child.py", *command[3:]]
    script = f'mount -t tmpfs -o size=200k none {tmp_path}; "$@"; ls -l {tmp_path}/{DOWNLOADS}/set'
    script += f'; mount -o remount,size=9M {tmp_path}; "$@" && ls -l {tmp_path}/set'
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, "sh", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this system lets nobody mount a disk of their own")
    assert "is full after" in done.stderr
    assert "the same command goes on" in done.stderr
    assert "300000" in done.stdout
    assert server.asked[-1][1] is not None
