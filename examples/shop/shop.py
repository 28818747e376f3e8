"""A shop: orders, receipts, and a nightly report."""

import psycopg
from pydantic import BaseModel

import tidewheel

TABLES = """
CREATE TABLE orders (number text PRIMARY KEY, email text NOT NULL, cents integer NOT NULL);
CREATE TABLE receipts (number text NOT NULL, text text NOT NULL);
CREATE TABLE reports (day date NOT NULL, cents bigint NOT NULL)
"""

JOBS: list[dict[str, object]] = [
    {"key": "receipt", "schedule": "manual", "target": "shop.receipt", "retry": {"max_attempts": 3}},
    {
        "key": "report",
        "schedule": {"cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin"},
        "target": "shop.report",
        "exclude_calendars": ["holidays"],
    },
]

database_url = ""


class Receipt(BaseModel):
    """The payload of a receipt."""

    number: str


def place_order(connection: psycopg.Connection, number: str, email: str, cents: int) -> None:
    """Store an order and enqueue its receipt, in the caller's transaction."""
    connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", [number, email, cents])
    tidewheel.enqueue(connection, "receipt", {"number": number}, request_id=f"receipt/{number}")


@tidewheel.handler("shop.receipt")
def write_receipt(context: tidewheel.Context, payload: Receipt) -> None:
    """Write a receipt exactly once: it and the run's completion are one transaction."""
    with psycopg.connect(database_url) as connection:
        text = compose(connection, payload.number)
        connection.execute("INSERT INTO receipts VALUES (%s, %s)", [payload.number, text])
        context.complete_in(connection, {"number": payload.number})


@tidewheel.handler("shop.report")
def write_report(context: tidewheel.Context, payload: object) -> int:
    """Sum up the orders."""
    del payload
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT coalesce(sum(cents), 0)::bigint FROM orders").fetchone()
        cents = row[0] if row else 0
        connection.execute("INSERT INTO reports VALUES (%s, %s)", [context.scheduled_at.date(), cents])
    return cents


@tidewheel.handler("shop.greet")
async def greet(context: tidewheel.Context, payload: str) -> str:
    """Greet a customer; for a test without any service."""
    context.heartbeat(progress="found the door")
    if not payload:
        raise tidewheel.Permanent("no name to greet")
    return f"good morning, {payload}"


def compose(connection: psycopg.Connection, number: str) -> str:
    """Return the text of a receipt."""
    row = connection.execute("SELECT email, cents FROM orders WHERE number = %s", [number]).fetchone()
    if row is None:
        raise tidewheel.Permanent(f"there is no order {number}")
    return f"{row[0]} paid {row[1] / 100:.2f}"
