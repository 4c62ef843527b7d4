"""Downloads over HTTP that resume where they ended, up to an expected size and checksum."""

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from fedsim.common.errors import DataError, FedsimError, ScenarioError, is_full
from fedsim.common.files import open_file
from fedsim.common.units import show_bytes
from fedsim.lab.fetching.catalogue import RemoteFile
from fedsim.version import __version__

_CHUNK = 1 << 18  # bytes read at a time
_ATTEMPTS = 3  # connections to one address, each of which resumes where the one before ended
_PATIENCE_S = 30.0  # longest real time without a byte (s)
_SCHEMES = ("http", "https")
_RANGE = re.compile(r"bytes (\d{1,15})-\d{1,15}/(\d{1,15}|\*)")
_RANGE_NOT_SATISFIABLE = 416  # HTTP status: the range begins at or after the end

FetchProgress = Callable[[str, int, int | None], None]
"""Receives the name of a file, the count of its bytes so far, and its size (None if unknown)."""


class DownloadError(FedsimError):
    """Error of a download, such as a server that does not answer; another attempt may succeed."""


class _UnusableError(Exception):
    """Error of an address that does not send the file; the message has the reason."""


def check_address(url: str, option: str = "url") -> None:
    """Raise ``ScenarioError`` if an address has no host, or is not of HTTP or HTTPS.

    Args:
        url: the address.
        option: name of the option that has the address, for the message.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ScenarioError(f"{option} is {url!r}; allowed are addresses with http:// or https://")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP and HTTPS addresses, but never from HTTPS back to plain HTTP."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        loses_encryption = req.type == "https" and scheme != "https"
        if scheme not in _SCHEMES or loses_encryption:
            raise _UnusableError(f"it redirects to {newurl[:80]!r}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True)
class FileTransfer:
    """Download of a file into a folder.

    Attributes:
        file: the file.
        urls: its addresses, which are tried in order.
        folder: an existing folder for the download, in which an incomplete download is kept, too.
        progress: called while bytes come in, with the name of the file, the count of its bytes so
            far, and its size (bytes; None if unknown).
    """

    file: RemoteFile
    urls: list[str]
    folder: Path
    progress: FetchProgress

    @property
    def _part(self) -> Path:
        return self.folder / f"{self.file.name}.part"

    def present(self) -> int:
        """Return the size of the incomplete download (bytes); 0 if there is none."""
        return self._part.stat().st_size if self._part.is_file() else 0

    def run(self) -> Path:
        """Download the file, from where an earlier download ended, and compare its checksum.

        Returns:
            The path of the complete download.

        Raises:
            DataError: the disk is full; the incomplete download is kept.
            DownloadError: no address sends the published file; an incomplete download is kept.
            ScenarioError: an address is not of HTTP or HTTPS.
        """
        reasons = []
        for url in self.urls:
            check_address(url)
            try:
                self._fetch(url)
            except _UnusableError as reason:
                reasons.append(f"{url}: {reason}")
            else:
                return self._part
        hint = ""
        if self.present():
            hint = (
                f". {show_bytes(self.present())} are kept in '{self.folder}', and the same command "
                "goes on from there"
            )
        raise DownloadError(f"{self.file.name} cannot be downloaded ({'; '.join(reasons)}){hint}")

    def _fetch(self, url: str) -> None:
        """Download the file from one address, in several attempts if the connection breaks.

        Raises:
            _UnusableError: the address does not send the published file.
        """
        for _ in range(_ATTEMPTS):
            earlier_bytes = self.present()
            if not self._is_complete():
                self._download_rest(url, earlier_bytes)
            if not self._is_complete():
                if self.present() > earlier_bytes:
                    continue  # another connection may bring the rest
                break
            difference = self._difference()
            if not difference:
                return
            self._part.unlink()
            if earlier_bytes == 0:  # all of the wrong file is from this address
                raise _UnusableError(difference)
            # the earlier part may be of another file: the next attempt begins anew
        raise _UnusableError(f"it ended after {show_bytes(self.present())}{self._of_size()}")

    def _download_rest(self, url: str, earlier_bytes: int) -> None:
        """Download the rest of the file from an address, as much as one connection brings.

        A connection that breaks raises no error if it brought bytes, as another may bring the rest.

        Args:
            url: the address.
            earlier_bytes: bytes that were downloaded before.
        """
        try:
            self._connect(url, earlier_bytes)
        except _UnusableError:
            if self.present() <= earlier_bytes:
                raise

    def _is_complete(self) -> bool:
        """Whether all bytes are there; if the file's size is unknown, whether the checksum fits."""
        if self.file.bytes is not None:
            return self.present() >= self.file.bytes
        return self._part.is_file() and digest(self._part, self.file) == self.file.checksum

    def _of_size(self) -> str:
        return "" if self.file.bytes is None else f" of {show_bytes(self.file.bytes)}"

    def _connect(self, url: str, start: int) -> None:
        """Connect to an address, and append what it sends to the incomplete download.

        Args:
            url: the address.
            start: index of the first byte that is requested.

        Raises:
            _UnusableError: the address does not answer, or sends something other than the file.
        """
        headers = {"User-Agent": f"fedsim/{__version__}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        opener = urllib.request.build_opener(_Redirects())
        # ``run`` has checked that ``url`` is http or https
        request = urllib.request.Request(url, headers=headers)
        try:
            with opener.open(request, timeout=_PATIENCE_S) as answer:
                self._receive(answer, start)
        except urllib.error.HTTPError as error:
            if error.code == _RANGE_NOT_SATISFIABLE:  # the part has all bytes of the server's file
                self._part.unlink(missing_ok=True)
            raise _UnusableError(f"HTTP status {error.code}, {error.reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
            raise _UnusableError(str(getattr(error, "reason", error)) or "no answer") from None
        except ConnectionError as error:
            raise _UnusableError(error.strerror or str(error)) from None

    def _receive(self, answer: http.client.HTTPResponse, start: int) -> None:
        """Append an answer to the incomplete download; begin anew if it has the whole file.

        Args:
            answer: the server's answer.
            start: index of the first byte that was requested.

        Raises:
            _UnusableError: the answer has other bytes, or a file of another size.
        """
        begin = _first_byte(answer)
        if begin not in (0, start):
            raise _UnusableError(f"it sends bytes from {begin} on, and {start} were asked for")
        length = answer.headers.get("Content-Length", "")
        if self.file.bytes is not None and length.isdecimal():
            size = begin + int(length)
            if size != self.file.bytes:
                raise _UnusableError(f"it has {size} bytes; {self.file.bytes} are expected")
        with self._part.open("ab" if begin else "wb") as part:
            self._copy(answer, part, begin)

    def _copy(self, answer: http.client.HTTPResponse, part: IO[bytes], begin: int) -> None:
        """Append the bytes of an answer to the incomplete download.

        Args:
            answer: the server's answer.
            part: the incomplete download.
            begin: size of the incomplete download so far (bytes).

        Raises:
            _UnusableError: the answer has more bytes than the file may have; the download is then
                removed.
        """
        size = begin
        while True:
            try:
                # ``read1`` does not wait for a whole chunk, so that a killed process loses few
                # bytes
                chunk = answer.read1(_CHUNK)
            except http.client.IncompleteRead as error:
                chunk = error.partial
            if not chunk:
                return
            size += len(chunk)
            if size > self.file.limit:
                part.close()
                self._part.unlink()
                raise _UnusableError(f"it sends more than {self.file.limit} bytes")
            self._write(chunk, part)
            self.progress(self.file.name, size, self.file.bytes)

    def _write(self, chunk: bytes, part: IO[bytes]) -> None:
        """Write bytes to the incomplete download; a full disk raises ``DataError``."""
        try:
            part.write(chunk)
            part.flush()
        except OSError as error:
            if not is_full(error):
                raise
            raise DataError(
                f"the disk that holds '{self.folder}' is full after {show_bytes(self.present())} "
                f"of {self.file.name}; make room there, and the same command goes on"
            ) from None

    def _difference(self) -> str:
        """Return how a complete download differs from the published file; "" if it does not."""
        if self.present() > self.file.limit:
            return f"it sent more than {self.file.limit} bytes"
        checksum = digest(self._part, self.file)
        if checksum == self.file.checksum:
            return ""
        return (
            f"it sent another file: {self.file.algorithm} {checksum}, published is "
            f"{self.file.checksum}"
        )


def _first_byte(answer: http.client.HTTPResponse) -> int:
    """Return the index in the file of the first byte that an answer has; 0 for the whole file.

    Raises:
        _UnusableError: the answer is a part of the file, but does not say which.
    """
    if answer.status != http.client.PARTIAL_CONTENT:
        return 0
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", "")[:80])
    if match is None:
        raise _UnusableError("it sends a part of the file without saying which")
    return int(match[1])


def digest(path: Path, file: RemoteFile) -> str:
    """Return the checksum of a local file by the publisher's algorithm, in hexadecimal digits.

    Args:
        path: the local file.
        file: description of the published file, with the algorithm (SHA-256 or MD5).
    """
    with open_file(path) as content:
        return hashlib.file_digest(content, file.algorithm).hexdigest()
