-- Who is alive and how far they have read.

CREATE TABLE members (
    member_id  uuid PRIMARY KEY,
    role       text NOT NULL CHECK (role IN ('scheduler', 'relay')),
    name       text NOT NULL,
    heartbeat_count    bigint NOT NULL DEFAULT 0,
    last_heartbeat_at    timestamptz NOT NULL,
    started_at timestamptz NOT NULL
);

CREATE TABLE executors (
    executor_id uuid PRIMARY KEY,
    name        text NOT NULL,
    queues      text[] NOT NULL,
    handlers    text[] NOT NULL,
    slots       integer NOT NULL,
    heartbeat_count     bigint NOT NULL DEFAULT 0,
    last_heartbeat_at     timestamptz NOT NULL,
    started_at  timestamptz NOT NULL,
    stopping    boolean NOT NULL DEFAULT false
);
COMMENT ON COLUMN executors.heartbeat_count IS 'the lease: attempts end as lost_attempts after it was watched standing still';

CREATE TABLE requests (
    tenant     text NOT NULL,
    request_id text NOT NULL,
    body_hash  bytea NOT NULL,
    reply      bytea NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant, request_id)
);
COMMENT ON TABLE requests IS 'first answers, kept 8 days; only requests that name a request_id';
CREATE INDEX requests_by_age ON requests (created_at);

-- The offsets that intake goes by. The epoch is the fence: a zombie's update hits no row.
CREATE TABLE intake_offsets (
    topic       text NOT NULL,
    partition   integer NOT NULL,
    topic_id    text NOT NULL,
    next_offset bigint NOT NULL,
    epoch       bigint NOT NULL,
    owner       text NOT NULL,
    PRIMARY KEY (topic, partition)
);

CREATE TABLE schemas (
    fingerprint bytea PRIMARY KEY,
    name        text NOT NULL,
    version     text NOT NULL,
    schema      text NOT NULL,
    stored_at   timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON TABLE schemas IS 'every released schema, so that an older reader can look a newer writer''s up';
