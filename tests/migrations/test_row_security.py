"""Row-level security of the tables, and the role as which sessions act for a tenant."""

from tests.fixtures.database import Database
from tidewheel.migrations.row_security import TENANT_ROLE, role_problem, unsecured_tables
from tidewheel.migrations.runner import created_names


def test_every_table_with_a_tenant_has_the_policy(shared_database: Database) -> None:
    with shared_database.transaction() as connection:
        assert unsecured_tables(connection, created_names()) == []
        assert role_problem(connection, TENANT_ROLE) is None
