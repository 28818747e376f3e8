"""Databases without any migration; dropping one costs more than the test, so they stay."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.fixtures.database import Database, Template
from tidewheel.local.stack import StackInfo


@pytest.fixture
def empty_database(info: StackInfo, template: Template) -> Iterator[Database]:
    """A database of its own with nothing in it."""
    name = f"unmigrated_{uuid4().hex[:16]}"
    with psycopg.connect(info.database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    made = Database(make_conninfo(info.database_url, dbname=name), template.installation)
    yield made
    made.close()
