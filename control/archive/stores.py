"""The place of the archive: a folder, or a bucket of S3.

A file is written under another name, flushed and moved, or uploaded as a whole: none is ever there in part. A manifest
is only written in place of the one that its writer has read, or of none.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar, cast
from urllib.parse import urlsplit

from tidewheel.distribution import require
from tidewheel.errors import SettingsError, Unavailable

MANIFEST = "manifest.json"
SETTING = "TIDEWHEEL_ARCHIVE"

R = TypeVar("R")


class MissingFile(Exception):
    """The archive has no such file."""


class ManifestChanged(Unavailable):
    """Another process has written the manifest meanwhile."""


class Store(Protocol):
    """Files of days; a file's name is that of its day, a slash, and its own.

    All methods raise SettingsError for what an operator corrects, and Unavailable for what passes.
    """

    def days(self) -> list[str]:
        """Return the days with any file, the oldest first."""
        ...

    def files(self, day: str) -> dict[str, int]:
        """Return the sizes of a day's files by name."""
        ...

    def read(self, name: str, span: tuple[int, int] | None = None) -> bytes:
        """Return a file's bytes, or so many from an offset on; raise MissingFile if there is none."""
        ...

    def prepare(self) -> Path:
        """Make an empty folder in which files grow."""
        ...

    def keep(self, path: Path, name: str) -> None:
        """Take a finished file of that folder."""
        ...

    def write_manifest(self, day: str, text: bytes, replaces: bytes | None) -> None:
        """Write a manifest in place of one, or of none; raise ManifestChanged if another one is there."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        ...

    def close(self) -> None:
        """Delete that folder."""
        ...


def manifest_text(store: Store, day: str) -> bytes | None:
    """Return the manifest of a day; None if it has none."""
    try:
        return store.read(f"{day}/{MANIFEST}")
    except MissingFile:
        return None


def open_store(url: str | None) -> Store:
    """Return the archive at a folder or at `s3://bucket/prefix`; raise SettingsError if none opens."""
    if not url:
        raise SettingsError(f"no archive is set; set {SETTING} to a folder or to s3://bucket/prefix")
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return FolderStore(Path(parts.path if parts.scheme else url).expanduser())
    if parts.scheme == "s3" and parts.netloc:
        return S3Store(parts.netloc, parts.path.strip("/"))
    raise SettingsError(f"{SETTING} is {url!r}, which is neither a folder nor s3://bucket/prefix; write one of these")


class FolderStore:
    """An archive in a folder."""

    def __init__(self, root: Path) -> None:
        self._days = root / "days"
        self._growing = root / "incoming"

    def days(self) -> list[str]:
        """Return the days with any file, the oldest first."""
        with self._mapped():
            return sorted(path.name for path in self._days.iterdir() if path.is_dir()) if self._days.is_dir() else []

    def files(self, day: str) -> dict[str, int]:
        """Return the sizes of a day's files by name."""
        folder = self._days / day
        with self._mapped():
            return {path.name: path.stat().st_size for path in folder.iterdir()} if folder.is_dir() else {}

    def read(self, name: str, span: tuple[int, int] | None = None) -> bytes:
        """Return a file's bytes, or so many from an offset on."""
        with self._mapped(), (self._days / name).open("rb") as file:
            if span is None:
                return file.read()
            file.seek(span[0])
            return file.read(span[1])

    def prepare(self) -> Path:
        """Make an empty folder in which files grow, on the archive's own disk."""
        with self._mapped():
            shutil.rmtree(self._growing, ignore_errors=True)
            _make_folder(self._growing)
        return self._growing

    def keep(self, path: Path, name: str) -> None:
        """Flush a file and move it to its place."""
        target = self._days / name
        with self._mapped():
            _make_folder(target.parent)
            _flush(path)
            path.replace(target)
            _flush(target.parent)

    def write_manifest(self, day: str, text: bytes, replaces: bytes | None) -> None:
        """Write a manifest in place of another one, or of none."""
        target, growing = self._days / day / MANIFEST, self._growing / MANIFEST
        with self._mapped():
            _make_folder(target.parent)
            _make_folder(self._growing)
            growing.write_bytes(text)
            _flush(growing)
            if replaces is None:
                try:
                    os.link(growing, target)
                except FileExistsError:
                    raise ManifestChanged(_changed(day)) from None
                growing.unlink()
            elif target.read_bytes() != replaces:
                raise ManifestChanged(_changed(day))
            else:
                growing.replace(target)
            _flush(target.parent)

    def delete(self, name: str) -> None:
        """Delete a file, and its folder after the last one."""
        path = self._days / name
        with self._mapped():
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                path.parent.rmdir()

    def close(self) -> None:
        """Delete that folder."""
        shutil.rmtree(self._growing, ignore_errors=True)

    @contextmanager
    def _mapped(self) -> Generator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFile(str(error.filename)) from None
        except OSError as error:
            message = f"{SETTING}: {error.filename}: {error.strerror}; correct the folder, its rights or its space"
            raise SettingsError(message) from error


class _Body(Protocol):
    def read(self, amt: int | None = None) -> bytes: ...


class _Pages(Protocol):
    def paginate(self, **request: object) -> Iterable[Mapping[str, object]]: ...


class _Client(Protocol):
    def get_paginator(self, name: str) -> _Pages: ...

    def get_object(self, **request: object) -> Mapping[str, object]: ...

    def put_object(self, **request: object) -> object: ...

    def upload_file(self, filename: str, bucket: str, key: str) -> None: ...

    def delete_object(self, **request: object) -> object: ...


# Codes that no time mends. Source: Amazon S3 API Reference, "Error responses".
_REFUSED = frozenset(
    ("NoSuchBucket", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403", "PermanentRedirect",
     "AuthorizationHeaderMalformed", "InvalidBucketName")
)  # fmt: skip
_NO_ACCESS = frozenset(("NoCredentialsError", "NoRegionError", "PartialCredentialsError", "ParamValidationError"))
_CHANGED = frozenset(("PreconditionFailed", "ConditionalRequestConflict"))


class S3Store:
    """An archive in a bucket; boto3 reads credentials, region and endpoint where AWS's tools do."""

    def __init__(self, bucket: str, prefix: str) -> None:
        require("s3", f"{SETTING} with a bucket")
        self._bucket, self._prefix = bucket, f"{prefix}/days/" if prefix else "days/"
        self._errors = import_module("botocore.exceptions")
        self._growing: Path | None = None
        self._client = self._call(lambda: cast("_Client", import_module("boto3").client("s3")))

    def days(self) -> list[str]:
        """Return the days with any file, the oldest first."""
        found = self._list("CommonPrefixes", Prefix=self._prefix, Delimiter="/")
        return sorted(str(each["Prefix"]).removeprefix(self._prefix).strip("/") for each in found)

    def files(self, day: str) -> dict[str, int]:
        """Return the sizes of a day's files by name."""
        prefix = f"{self._prefix}{day}/"
        found = self._list("Contents", Prefix=prefix)
        return {str(each["Key"]).removeprefix(prefix): cast("int", each["Size"]) for each in found}

    def read(self, name: str, span: tuple[int, int] | None = None) -> bytes:
        """Return an object's bytes, or so many from an offset on."""
        ranged = {} if span is None else {"Range": f"bytes={span[0]}-{span[0] + span[1] - 1}"}
        return self._call(lambda: cast("_Body", self._get(name, **ranged)["Body"]).read())

    def prepare(self) -> Path:
        """Make an empty folder in which files grow until they are uploaded."""
        self.close()
        self._growing = Path(tempfile.mkdtemp(prefix="tidewheel-archive-"))
        return self._growing

    def keep(self, path: Path, name: str) -> None:
        """Upload a file, in parts if it is large; it is there after the last part."""
        self._call(lambda: self._client.upload_file(str(path), self._bucket, self._prefix + name))
        path.unlink()

    def write_manifest(self, day: str, text: bytes, replaces: bytes | None) -> None:
        """Write a manifest in place of another one, or of none."""
        name = f"{day}/{MANIFEST}"
        condition = {"IfNoneMatch": "*"}
        if replaces is not None:
            found = self._call(lambda: self._get(name))
            if cast("_Body", found["Body"]).read() != replaces:
                raise ManifestChanged(_changed(day))
            condition = {"IfMatch": str(found["ETag"])}
        self._call(
            lambda: self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=text, **condition)
        )

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._call(lambda: self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name))

    def close(self) -> None:
        """Delete that folder."""
        if self._growing is not None:
            shutil.rmtree(self._growing, ignore_errors=True)

    def _get(self, name: str, **ranged: str) -> Mapping[str, object]:
        return self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **ranged)

    def _list(self, group: str, **which: str) -> list[Mapping[str, object]]:
        def read() -> Iterator[Mapping[str, object]]:
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **which):
                yield from cast("list[Mapping[str, object]]", page.get(group, []))

        return self._call(lambda: list(read()))

    def _call(self, call: Callable[[], R]) -> R:
        """Return the result of a call; map boto's errors."""
        try:
            return call()
        except self._errors.ClientError as error:
            code = str(error.response["Error"]["Code"])
            if code in ("NoSuchKey", "404"):
                raise MissingFile(self._bucket) from None
            if code in _CHANGED:
                raise ManifestChanged(_changed(self._bucket)) from None
            if code in _REFUSED:
                message = f"{SETTING}: S3 refuses the bucket {self._bucket}: {error}; correct bucket, key or rights"
                raise SettingsError(message) from error
            raise Unavailable(f"the archive does not answer: {error}") from error
        except (self._errors.BotoCoreError, import_module("boto3.exceptions").S3UploadFailedError) as error:
            if type(error).__name__ in _NO_ACCESS:
                message = f"{SETTING}: {error}; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
                raise SettingsError(message) from error
            raise Unavailable(f"the archive does not answer: {error}") from error


def _changed(where: str) -> str:
    return f"meanwhile another process has written the manifest of {where}; repeat the command"


def _make_folder(folder: Path) -> None:
    """Make a folder with those above it, each flushed to its parent."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _flush(folder.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
