"""Catalogue of public data sets: files, addresses, sizes, checksums and licences."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_toml
from fedsim.common.spec import Spec

_CATALOGUE = Path(__file__).with_suffix(".toml")

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
FileSize = Annotated[int, Field(ge=1, le=10**13)]
Checksum = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$")]


class Member(Spec):
    """File to unpack from a downloaded archive of a public data set.

    Attributes:
        source: name of the file in the archive; "" if the archive is a single file without a name.
        bytes: size of the unpacked file (bytes); None if only ``most`` is known.
        most: the largest size that is accepted (bytes); used if ``bytes`` is None.
    """

    source: str = ""
    bytes: FileSize | None = None
    most: FileSize | None = None

    @property
    def limit(self) -> int:
        """The largest size of the unpacked file that is accepted (bytes)."""
        return self.bytes or self.most or 0

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        if not self.limit:
            raise ValueError("a member needs 'bytes' or 'most'")
        return self


class RemoteFile(Spec):
    """File of a public data set that fedsim can download from its publisher.

    Attributes:
        name: name of the downloaded file.
        urls: addresses, which are tried in order.
        bytes: size of the download (bytes); None if only ``most`` is known.
        most: the largest size that is accepted (bytes); used if ``bytes`` is None.
        sha256, md5: checksum of the downloaded file; exactly one of the two is given.
        form: format of the archive to unpack; None if the file is kept as it is.
        members: name of a file to write -> the file to unpack from the archive.
    """

    name: FileName
    urls: list[str] = Field(min_length=1)
    bytes: FileSize | None = None
    most: FileSize | None = None
    sha256: Checksum | None = None
    md5: Checksum | None = None
    form: Literal["tar", "zip", "lzma"] | None = None
    members: dict[FileName, Member] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_completeness(self) -> Self:
        if (self.sha256 is None) == (self.md5 is None):
            raise ValueError(f"{self.name!r} needs a checksum, 'sha256' or 'md5'")
        if not self.limit:
            raise ValueError(f"{self.name!r} needs 'bytes' or 'most'")
        if (self.form is None) != (not self.members):
            raise ValueError(f"{self.name!r} needs 'form' and 'members' together")
        return self

    @property
    def limit(self) -> int:
        """The largest size of the download that is accepted (bytes)."""
        return self.bytes or self.most or 0

    @property
    def algorithm(self) -> Literal["sha256", "md5"]:
        """Algorithm of the published checksum."""
        return "md5" if self.sha256 is None else "sha256"

    @property
    def checksum(self) -> str:
        """Published SHA-256 or MD5 of the download, in hexadecimal digits."""
        return self.sha256 or self.md5 or ""

    @property
    def outputs(self) -> list[str]:
        """Names of the files that the data set needs: the unpacked files, or the download."""
        return list(self.members) or [self.name]


class RemoteDataset(Spec):
    """Public data set that ``fedsim data fetch`` downloads, or explains how to get by hand.

    Attributes:
        title: title and authors of the data set.
        folder: folder of its files, under the folder of all data sets.
        licence: its licence, in words.
        page: address of its publisher's page.
        use: how a scenario uses the data set.
        files: its files; empty if it has to be downloaded by hand.
        by_hand: the files to put into the folder by hand; "" if they are downloaded.
    """

    title: str
    folder: str
    licence: str
    page: str
    use: str
    files: list[RemoteFile] = Field(default_factory=list)
    by_hand: str = ""


@cache
def read_catalogue() -> dict[str, RemoteDataset]:
    """Return all public data sets that fedsim can fetch: a dict from name to data set."""
    tables = read_toml(_CATALOGUE)
    return {name: RemoteDataset(**table) for name, table in tables.items()}


def find_dataset(name: str) -> RemoteDataset:
    """Return a public data set that fedsim can fetch, by name.

    Raises:
        ScenarioError: no data set has this name.
    """
    datasets = read_catalogue()
    if name not in datasets:
        raise ScenarioError(
            f"data fetch: {name!r} is unknown; allowed are "
            f"{', '.join(datasets)}{nearest(name, datasets)}"
        )
    return datasets[name]
