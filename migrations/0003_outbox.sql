-- Outbox: messages for Kafka. A row is inserted by the transaction that it reports, and deleted after the broker's
-- acknowledgement. No primary key: the relay deletes by physical address and id together, which saves an index on the
-- busiest table (docs/adr/0004-outbox.md).
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY (CACHE 500),
    slice_lane smallint NOT NULL,
    publish_at timestamptz NOT NULL,
    topic      text NOT NULL,
    key        bytea,
    value      bytea,
    headers    bytea[],
    tenant     text,
    priority   smallint
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.id IS 'ascends within one session; each session takes 500 ids at a time';
COMMENT ON COLUMN outbox.slice_lane IS
    'lane (0 critical, 1 standard, 2 batch, 3 events) times 8, plus the slice: the range of shards that one relay publishes';
COMMENT ON COLUMN outbox.headers IS 'name, value, name, value, …';
COMMENT ON COLUMN outbox.tenant IS 'of a run: runs are dealt out by tenant while their topic is held back; null in other messages';
CREATE POLICY of_none ON outbox FOR INSERT WITH CHECK (tenant IS NULL); -- beside that of all tables (row_security.py)
COMMENT ON COLUMN outbox.priority IS 'of a run, 0 to 9; null: 5';
CREATE INDEX outbox_due ON outbox (slice_lane, publish_at, id);
