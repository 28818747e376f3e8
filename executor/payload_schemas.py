"""The JSON schemas of the payloads that handlers declare: the console makes fields of them."""

import json
import logging
from collections.abc import Mapping

from psycopg.types.json import Jsonb

from tidewheel.executor.handlers import Handler
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_LOG = logging.getLogger("tidewheel.executor")
_RECORD_PAYLOAD_SCHEMAS = Statements("tidewheel.executor")["record_payload_schemas"]
_LONGEST = 65_536  # characters of a schema: a form of more would be no help


def payload_schemas(handlers: Mapping[str, Handler]) -> dict[str, str | None]:
    """Return the schema of each payload as JSON; None for any value, or a type without a schema."""
    return {name: _schema_of(handlers[name]) for name in sorted(handlers)}


def record_payload_schemas(connection: Conn, schemas: Mapping[str, str | None]) -> None:
    """Record the schemas of an executor's handlers, in the caller's transaction."""
    # As texts: jsonb would order the fields.
    kept = [Jsonb(each if each is not None and len(each) <= _LONGEST else None) for each in schemas.values()]
    connection.execute(_RECORD_PAYLOAD_SCHEMAS, {"handlers": list(schemas), "schemas": kept})


def _schema_of(handler: Handler) -> str | None:
    if handler.payload is None:
        return None
    try:
        return json.dumps(handler.payload.json_schema())
    except Exception as error:  # noqa: BLE001 - of a model's own code: its handler runs all the same
        _LOG.info("the payload of handler %r has no JSON schema: %s", handler.name, error)
        return None
