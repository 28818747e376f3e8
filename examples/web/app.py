"""Orders over HTTP: an order and the run of its receipt are one transaction."""

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import tidewheel
from tidewheel.errors import UnknownRun

# postgresql+psycopg://…: Tidewheel's tables and the shop's lie in one database.
engine = create_async_engine(os.environ["SHOP_DATABASE_URL"])
new_session = async_sessionmaker(engine)
app = FastAPI(title="shop")


class Order(BaseModel):
    """An order, as a customer sends it."""

    number: str
    email: str


async def session() -> AsyncIterator[AsyncSession]:
    """One transaction for each request: committed at its end, rolled back after an error."""
    async with new_session.begin() as opened:
        yield opened


Session = Annotated[AsyncSession, Depends(session, scope="function")]


@app.post("/orders", status_code=201)
async def place_order(order: Order, session: Session) -> dict[str, Any]:
    """Store an order and enqueue its receipt: both, or neither."""
    await session.execute(text("INSERT INTO orders VALUES (:number, :email)"), order.model_dump())
    request_id = f"receipt/{order.number}"
    run = await tidewheel.enqueue_async(session, "receipt", {"number": order.number}, request_id=request_id)
    if not order.email:
        raise HTTPException(422, "an order needs an address")  # nothing was stored, and no run exists
    return {"receipt": run}


@app.get("/receipts/{run_id}")
async def receipt(run_id: UUID, session: Session) -> dict[str, str]:
    """Return the state of a receipt."""
    try:
        return {"state": (await tidewheel.status_async(session, run_id)).state}
    except UnknownRun as error:
        raise HTTPException(404, str(error)) from error


@app.delete("/orders/{number}")
async def withdraw_order(number: str, run_id: UUID, session: Session) -> dict[str, str]:
    """Remove an order and cancel its receipt: both, or neither."""
    await session.execute(text("DELETE FROM orders WHERE number = :number"), {"number": number})
    return {"was": await tidewheel.cancel_async(session, run_id, reason="the order was withdrawn")}
