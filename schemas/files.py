"""The schema files, current and released, and the fingerprints that name schemas on the wire.

A schema's file is named after its record in snake case: `run_request.avsc` holds `io.tidewheel.RunRequest`. Source of
fingerprints: Apache Avro 1.12 Specification, "Single-object encoding" and "Schema Fingerprints".
"""

import json
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastavro import parse_schema
from fastavro.schema import fingerprint as _fingerprint
from fastavro.schema import to_parsing_canonical_form

MAGIC = b"\xc3\x01"
HEADER_BYTES = 10
REGISTRY_MAGIC = b"\0"  # begins the wire format of a schema registry, before four bytes of id

_HERE: Traversable = files("tidewheel.schemas")


@cache
def current() -> dict[str, str]:
    """Return the text of each current schema by its file's stem."""
    return _texts(_HERE)


@cache
def released() -> dict[str, dict[str, str]]:
    """Return the texts of each released version, oldest version first."""
    versions = [folder for folder in (_HERE / "released").iterdir() if folder.is_dir()]
    return {folder.name: _texts(folder) for folder in sorted(versions, key=lambda folder: _order(folder.name))}


@cache
def json_schema_uri(stem: str) -> str:
    """Return the name of the JSON schema of a record, by its file's stem: the `$id` of `json/<stem>.json`.

    It names no address. It ends with this release, so that an event names the schema of the release that wrote it.
    """
    return f"urn:tidewheel:schema:{stem}:{version('tidewheel')}"


@lru_cache(maxsize=1024)
def fingerprint(schema: str) -> bytes:
    """Return the CRC-64-AVRO fingerprint of a schema's canonical form.

    It has eight bytes, little-endian as on the wire. The canonical form leaves out docs and defaults. Two schemas that
    differ in these alone have one fingerprint.
    """
    canonical = to_parsing_canonical_form(parse_schema(json.loads(schema)))
    return bytes.fromhex(_fingerprint(canonical, "CRC-64-AVRO"))


def single_object_header(schema: str) -> bytes:
    """Return the ten bytes with which every message of a schema begins."""
    return MAGIC + fingerprint(schema)


def _texts(folder: Traversable) -> dict[str, str]:
    found = {file.name.removesuffix(".avsc"): file for file in folder.iterdir() if file.name.endswith(".avsc")}
    return {stem: found[stem].read_text("utf-8") for stem in sorted(found)}


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
