"""The CRC-64-AVRO fingerprint of a schema's canonical form, which names it on the wire.

Source: Apache Avro 1.12 Specification, "Single-object encoding" and "Schema Fingerprints".
"""

import json
from functools import lru_cache

from fastavro import parse_schema
from fastavro.schema import fingerprint as _fingerprint
from fastavro.schema import to_parsing_canonical_form

MAGIC = b"\xc3\x01"
HEADER_BYTES = 10


@lru_cache(maxsize=1024)
def fingerprint(schema: str) -> bytes:
    """Return the eight bytes that name a schema, in the (little-endian) order they have on the wire.

    Documentation and defaults are no part of it: two schemas that differ in those alone have one name.
    """
    canonical = to_parsing_canonical_form(parse_schema(json.loads(schema)))
    return bytes.fromhex(_fingerprint(canonical, "CRC-64-AVRO"))


def single_object_header(schema: str) -> bytes:
    """Return the ten bytes every message written with a schema begins with."""
    return MAGIC + fingerprint(schema)
