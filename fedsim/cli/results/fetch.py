"""Result of ``fedsim data fetch``."""

from typing import Literal

from fedsim.cli.results.parts import ResultEntries, VerbResult
from fedsim.lab.fetching.fetch import FetchPlan


class FetchedFileResult(ResultEntries):
    """File of a data set in the output of ``fedsim data fetch``: addresses, checksum and state."""

    name: str
    """Name of the download."""
    urls: list[str]
    """Addresses, which are tried in order."""
    bytes: int | None
    """Size of the download (bytes); null if it is not published."""
    algorithm: Literal["sha256", "md5"]
    """Algorithm of the checksum."""
    checksum: str
    """Checksum of the download, in hexadecimal digits."""
    state: Literal["there", "part", "missing"]
    """State before the command: complete, partly downloaded, or neither."""
    written: list[str]
    """Names of the files in the folder: the download itself, or what is unpacked from it."""


class FetchResult(VerbResult):
    """JSON output of ``fedsim data fetch``, which downloads a data set from its publisher.

    It has the data set's title, licence and sizes, and the state of each file before the command.
    """

    verb: Literal["data fetch"] = "data fetch"
    name: str
    """Name of the data set."""
    status: Literal["done", "there", "dry-run"]
    """``there`` if nothing was missing."""
    title: str
    """Title of the data set, and its authors."""
    licence: str
    """Its licence, in words."""
    page: str
    """Page of the publisher."""
    hosts: list[str]
    """Hosts, in the order in which they are asked."""
    folder: str
    """Folder of the files."""
    use: str
    """How a scenario uses the data set."""
    download_bytes: int
    """Bytes that were missing before the command; an upper limit if a size is not published."""
    disk_bytes: int
    """Upper limit of the disk space that the command needs while it works (bytes)."""
    files: list[FetchedFileResult]
    """Its files."""

    @classmethod
    def of(cls, plan: FetchPlan, *, dry_run: bool) -> "FetchResult":
        """Build the result of a download from its plan.

        Args:
            plan: plan that was made before the download: the files, and their states at that time.
            dry_run: whether nothing was downloaded.
        """
        status: Literal["done", "there", "dry-run"] = "done"
        if not plan.missing:
            status = "there"
        elif dry_run:
            status = "dry-run"
        files = []
        for planned in plan.files:
            files.append(
                FetchedFileResult(
                    name=planned.file.name,
                    urls=planned.urls,
                    bytes=planned.file.bytes,
                    algorithm=planned.file.algorithm,
                    checksum=planned.file.checksum,
                    state=planned.state,
                    written=planned.file.outputs,
                )
            )
        return cls(
            name=plan.name,
            status=status,
            title=plan.dataset.title,
            licence=plan.dataset.licence,
            page=plan.dataset.page,
            hosts=plan.hosts,
            folder=str(plan.folder),
            use=plan.dataset.use,
            download_bytes=plan.download_bytes,
            disk_bytes=plan.disk_bytes,
            files=files,
        )
