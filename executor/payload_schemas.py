"""The JSON schemas of the payloads that handlers declare: the console makes fields of them."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from tidewheel.executor.handlers import Handler
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_LOG = logging.getLogger("tidewheel.executor")
_RECORD_PAYLOAD_SCHEMAS = Statements("tidewheel.executor")["record_payload_schemas"]
_LONGEST = 65_536  # characters of a schema: a form of more would be no help


def payload_schema(handler: Handler) -> Mapping[str, Any] | None:
    """Return the schema of a handler's payload; None for any JSON value, or a type that has no schema."""
    if handler.payload is None:
        return None
    try:
        schema = handler.payload.json_schema()
        json.dumps(schema)
    except Exception as error:  # noqa: BLE001 - of a model's own code: its handler runs all the same
        _LOG.info("the payload of handler %r has no JSON schema: %s", handler.name, error)
        return None
    return schema


def record_payload_schemas(connection: Conn, handlers: Mapping[str, Handler]) -> None:
    """Record the schemas of an executor's handlers, in the caller's transaction."""
    schemas = {name: payload_schema(handlers[name]) for name in sorted(handlers)}
    texts = [None if each is None else json.dumps(each) for each in schemas.values()]  # jsonb would order the fields
    kept = [Jsonb(each if each is not None and len(each) <= _LONGEST else None) for each in texts]
    connection.execute(_RECORD_PAYLOAD_SCHEMAS, {"handlers": list(schemas), "schemas": kept})
