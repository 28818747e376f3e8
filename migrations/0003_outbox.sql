-- What leaves for Kafka. Appended in the transaction that makes it true, deleted after the broker has acknowledged it.
-- No primary key: the relay deletes by the row's physical address and its id together, which saves an index on the
-- hottest table there is (docs/adr/0004-outbox.md).
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    slice      smallint NOT NULL,
    lane       text NOT NULL CHECK (lane IN ('critical', 'standard', 'batch', 'events')),
    publish_at timestamptz NOT NULL,
    topic      text NOT NULL,
    key        bytea,
    value      bytea,
    headers    bytea[]
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.slice IS 'the range of shards whose relay carries it';
COMMENT ON COLUMN outbox.headers IS 'name, value, name, value, …';
CREATE INDEX outbox_due ON outbox (slice, lane, publish_at, id);
