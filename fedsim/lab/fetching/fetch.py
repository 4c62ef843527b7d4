"""Download of a public data set into the folder of data sets."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from fedsim.common.errors import DataError
from fedsim.common.files import make_folder, read_json, replacing, sync
from fedsim.common.units import show_bytes
from fedsim.lab.fetching.archives import unpack
from fedsim.lab.fetching.catalogue import RemoteDataset, RemoteFile
from fedsim.lab.fetching.transfer import (
    DownloadError,
    FetchProgress,
    FileTransfer,
    check_address,
    digest,
)
from fedsim.records.lock import locked

DOWNLOADS = "downloads"
"""Folder under the folder of data sets that keeps incomplete downloads."""

RECEIPT = "fetched.json"
"""File in the folder of a data set that lists the fetched files, their sizes and addresses."""

FileState = Literal["there", "part", "missing"]


@dataclass(frozen=True)
class PlannedFile:
    """File of a data set that is to be fetched, with what is already downloaded.

    Attributes:
        file: the file, as the catalogue of data sets describes it.
        urls: its addresses, which are tried in order.
        state: ``there`` if the file, or the files that are unpacked from it, are complete;
            ``part`` if an earlier download was interrupted; else ``missing``.
        present: count of bytes that an interrupted download has stored; 0 if there is none.
    """

    file: RemoteFile
    urls: list[str]
    state: FileState
    present: int


@dataclass(frozen=True)
class FetchPlan:
    """Plan of the download of a data set: its files, their addresses, and the folder.

    Attributes:
        name: name of the data set.
        dataset: the data set.
        root: the folder of data sets.
        files: all files of the data set.
    """

    name: str
    dataset: RemoteDataset
    root: Path
    files: list[PlannedFile]

    @property
    def folder(self) -> Path:
        """Folder of the data set."""
        return self.root / self.dataset.folder

    @property
    def missing(self) -> list[PlannedFile]:
        """Files of the data set that are not complete on this machine."""
        return [planned for planned in self.files if planned.state != "there"]

    @property
    def download_bytes(self) -> int:
        """Count of bytes to download; an upper bound if the size of a file is not known."""
        return sum(max(0, planned.file.limit - planned.present) for planned in self.missing)

    @property
    def disk_bytes(self) -> int:
        """Upper bound of the disk space for the plan's downloads and unpacked files (bytes)."""
        unpacked_bytes = 0
        for planned in self.missing:
            unpacked_bytes += sum(member.limit for member in planned.file.members.values())
        return self.download_bytes + unpacked_bytes

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts from which files come, in the order in which they are tried."""
        urls = [url for planned in self.files for url in planned.urls]
        return list(dict.fromkeys(urlsplit(url).netloc for url in urls))

    def lines(self) -> list[str]:
        """Return lines of text for users: title, licence, page, hosts, folder, size and use."""
        size = show_bytes(self.download_bytes)
        disk = show_bytes(self.disk_bytes)
        are_sizes_known = all(planned.file.bytes for planned in self.missing)
        limit = "" if are_sizes_known else "at most "
        lines = [
            f"{self.name}: {self.dataset.title}",
            f"licence: {self.dataset.licence}",
            f"page: {self.dataset.page}",
            f"from: {', '.join(self.hosts)}",
            f"to: {self.folder}",
        ]
        if self.missing:
            lines.append(f"size: {limit}{size} to download, up to {disk} of disk meanwhile")
        lines.append(f"in a scenario: {self.dataset.use}")
        return lines


def plan_fetch(
    name: str, dataset: RemoteDataset, root: Path, mirror: str | None = None
) -> FetchPlan:
    """Plan the download of a data set: find which files are missing on this machine.

    Nothing is written, and no server is asked.

    Args:
        name: name of the data set.
        dataset: the data set.
        root: the folder of data sets.
        mirror: address of a folder on another server that has all files by their names; None to
            download from the publisher.

    Raises:
        DataError: the data set has to be downloaded by hand; or its folder has a file of the same
            name as a published file, with other content, that was not fetched.
        ScenarioError: the mirror's address is not allowed.
    """
    folder = root / dataset.folder
    if dataset.by_hand:
        raise DataError(
            f"{name} has to be downloaded by hand ({dataset.licence}): put {dataset.by_hand} into "
            f"'{folder}'; see {dataset.page}"
        )
    if mirror is not None:
        check_address(mirror, "--from")
    receipt = _read_receipt(folder)
    files = []
    for file in dataset.files:
        urls = file.urls
        if mirror is not None:
            urls = [f"{mirror.rstrip('/')}/{file.name}"]
        transfer = FileTransfer(file, urls, root / DOWNLOADS / name, _report_nothing)
        present_bytes = transfer.present()  # size of an incomplete download
        state: FileState = "part" if present_bytes else "missing"
        if _is_there(folder, file, receipt):
            state = "there"
        files.append(PlannedFile(file, urls, state, present_bytes))
    return FetchPlan(name, dataset, root, files)


def fetch(plan: FetchPlan, progress: FetchProgress) -> None:
    """Download and unpack the missing files of a plan.

    Args:
        plan: the plan.
        progress: called while a file is downloaded or unpacked, with the name of the file, the
            count of its bytes so far, and its size (bytes; None if unknown).

    Raises:
        DataError: an archive is damaged or hostile, or the disk has too little room.
        DownloadError: a download fails; the message names the files to get by hand.
        RunFolderError: another process fetches this data set.
    """
    if not plan.missing:
        return
    downloads = plan.root / DOWNLOADS / plan.name
    make_folder(downloads)
    make_folder(plan.folder)
    free = shutil.disk_usage(downloads).free
    if free < plan.disk_bytes:
        raise DataError(
            f"{plan.name} needs up to {show_bytes(plan.disk_bytes)} of disk, and the disk that "
            f"holds '{plan.root}' has {show_bytes(free)}; make room there, or give another --root"
        )
    with locked(downloads):
        for planned in plan.missing:
            try:
                archive = FileTransfer(planned.file, planned.urls, downloads, progress).run()
            except DownloadError as error:
                raise DownloadError(f"{error}. {_advice(plan)}") from None
            _put(archive, planned.file, plan.folder, progress)
            _write_receipt(plan.folder, planned)
        shutil.rmtree(downloads)


def _advice(plan: FetchPlan) -> str:
    """Return a sentence that says which files to download by hand, and where to put them."""
    sentences = []
    for planned in plan.missing:
        target = plan.root / DOWNLOADS / plan.name / f"{planned.file.name}.part"
        sentences.append(f"download {planned.urls[0]} elsewhere and save it as '{target}'")
    return f"By hand: {'; '.join(sentences)}; then the same command checks and unpacks it"


def _put(archive: Path, file: RemoteFile, folder: Path, progress: FetchProgress) -> None:
    """Move a complete download to the data set's folder, or unpack it there.

    Args:
        archive: the downloaded file, which is removed from where it is.
        file: description of the file, which states whether it is unpacked.
        folder: folder of the data set.
        progress: called while bytes are unpacked.
    """
    if file.form is None:
        sync(archive)
        archive.replace(folder / file.name)
    else:
        unpack(archive, file, folder, progress)
        archive.unlink()
    sync(folder)


def _is_there(folder: Path, file: RemoteFile, receipt: dict[str, int]) -> bool:
    """Whether a published file, or all files that are unpacked from it, are in the folder.

    Args:
        folder: folder of the data set.
        file: description of the published file.
        receipt: dict from name to size (bytes) of the files that were fetched before.

    Raises:
        DataError: a file is in the way that was not fetched and differs from the published one.
    """
    are_there = True
    for name in file.outputs:
        path = folder / name
        if not path.exists():
            are_there = False
            continue
        size = path.stat().st_size
        if receipt.get(name) == size or _is_published(path, size, file, name):
            continue
        if name not in receipt:
            raise DataError(
                f"'{path}' is there, and is not the published file; move it away, or give another "
                "--root"
            )
        are_there = False  # the file was fetched, and has changed since
    return are_there


def _is_published(path: Path, size: int, file: RemoteFile, name: str) -> bool:
    """Whether a file that was found in the folder is the published one.

    An unpacked file is compared by its size only, as its checksum is not known.

    Args:
        path: the found file.
        size: its size (bytes).
        file: description of the published file.
        name: name of the found file among the files that ``file`` unpacks to.
    """
    if file.members:
        return size == file.members[name].bytes
    return size <= file.limit and digest(path, file) == file.checksum


def _read_receipt(folder: Path) -> dict[str, int]:
    """Return a dict from name to size (bytes) of the files that were fetched into a folder before.

    They are read from the receipt, a file in that folder; empty if it cannot be read.
    """
    try:
        table = read_json(folder / RECEIPT)
        entries = table["files"].items()
        return {str(name): int(entry["bytes"]) for name, entry in entries}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write_receipt(folder: Path, planned: PlannedFile) -> None:
    """Add the files that were fetched to the receipt, a file in the data set's folder.

    The receipt lists size, addresses and checksum of each fetched file.

    Args:
        folder: folder of the data set.
        planned: the download, whose files are in the folder now.
    """
    try:
        table = read_json(folder / RECEIPT)["files"]
    except (OSError, ValueError, TypeError, KeyError):
        table = {}
    for name in planned.file.outputs:
        table[name] = {
            "bytes": (folder / name).stat().st_size,
            "from": planned.urls,
            planned.file.algorithm: planned.file.checksum,
        }
    with replacing(folder / RECEIPT) as target:
        target.write_text(json.dumps({"files": table}, indent=1) + "\n", encoding="utf-8")


def _report_nothing(name: str, size: int, total: int | None) -> None:
    """Receive the progress of a download without showing it."""
