-- Services: processes with their heartbeats, replies to requests, consumed offsets, stored schemas, keys of messages.

CREATE TABLE members (
    member_id         uuid PRIMARY KEY,
    role              text NOT NULL CHECK (role IN ('scheduler', 'relay')),
    name              text NOT NULL,
    heartbeat_count   bigint NOT NULL DEFAULT 0,
    last_heartbeat_at timestamptz NOT NULL,
    started_at        timestamptz NOT NULL,
    held              jsonb
);
COMMENT ON COLUMN members.held IS 'of a relay: the queues and lanes whose runs it holds back, each with its tenants, written every 2 s; null: none';

CREATE TABLE executors (
    executor_id       uuid PRIMARY KEY,
    name              text NOT NULL,
    queues            text[] NOT NULL,
    handlers          text[] NOT NULL,
    slots             integer NOT NULL,
    heartbeat_count   bigint NOT NULL DEFAULT 0,
    last_heartbeat_at timestamptz NOT NULL,
    started_at        timestamptz NOT NULL,
    stopping          boolean NOT NULL DEFAULT false,
    group_protocol    text,
    lease             interval,
    last_claim_seq    bigint
);
COMMENT ON COLUMN executors.handlers IS 'the names of its handlers, with tidewheel. and the type of each other target that it runs';
COMMENT ON COLUMN executors.heartbeat_count IS 'the lease: if the reaper sees it unchanged for that long, the attempts are lost';
COMMENT ON COLUMN executors.lease IS 'its own setting of how long heartbeat_count may stay unchanged; null: the reaper''s setting';
COMMENT ON COLUMN executors.last_claim_seq IS 'of an executor in another language: its latest claim; else null';

-- One row for each process of a service. Operators read it, and no service decides by it.
CREATE TABLE processes (
    process_id        uuid PRIMARY KEY,
    role              text NOT NULL CHECK (role IN ('intake', 'scheduler', 'relay', 'executor', 'api')),
    host              text NOT NULL,
    pid               integer NOT NULL,
    version           text NOT NULL,
    settings          jsonb NOT NULL,
    sent_at           timestamptz NOT NULL,
    last_heartbeat_at timestamptz NOT NULL,
    started_at        timestamptz NOT NULL
);
COMMENT ON COLUMN processes.process_id IS 'of an executor: its executor_id, so that executors has its slots and handlers';
COMMENT ON COLUMN processes.settings IS 'the settings that all processes must share: values, and of secrets a digest';
COMMENT ON COLUMN processes.sent_at IS 'the last heartbeat by the clock of the process; last_heartbeat_at is by the database''s clock';

-- Handlers that runs need and no executor has.
CREATE TABLE unhandled_announcements (
    tenant       text NOT NULL,
    queue        text NOT NULL,
    handler      text NOT NULL,
    announced_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, queue, handler)
);
COMMENT ON TABLE unhandled_announcements IS 'the last event about a queue without an executor for a handler; an empty handler: the queue has no executor';

CREATE TABLE requests (
    tenant     text NOT NULL,
    request_id text NOT NULL,
    body_hash  bytea NOT NULL,
    reply      bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, request_id)
);
COMMENT ON TABLE requests IS 'replies to requests with a request_id, kept 8 days: a repeated request gets the same reply';
CREATE INDEX requests_by_age ON requests (created_at);

-- The offsets from which intake consumes. The epoch is the fence: an update by an outdated member matches no row.
-- `unmoved` counts the assignments in a row that found a message and moved no offset.
CREATE TABLE intake_offsets (
    topic       text NOT NULL,
    partition   integer NOT NULL,
    topic_id    text NOT NULL,
    next_offset bigint NOT NULL,
    epoch       bigint NOT NULL,
    owner       text NOT NULL,
    unmoved     integer NOT NULL,
    PRIMARY KEY (topic, partition)
);

CREATE TABLE schemas (
    fingerprint bytea PRIMARY KEY,
    name        text NOT NULL,
    version     text NOT NULL,
    schema      text NOT NULL,
    stored_at   timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON TABLE schemas IS 'every released schema, so that an older reader finds the schema of a newer writer';

-- Every key in the table verifies run messages, and the newest one signs them. `gen_random_uuid` has 122 random bits.
CREATE TABLE message_keys (
    key_id     integer GENERATED ALWAYS AS IDENTITY (MAXVALUE 16777215) PRIMARY KEY,
    secret     bytea NOT NULL DEFAULT sha256((gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text)::bytea)
               CHECK (octet_length(secret) = 32),
    created_at timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON TABLE message_keys IS 'keys of the signatures of run messages; `tidewheel topics rotate-key` adds one';
INSERT INTO message_keys DEFAULT VALUES;

-- Keys of clients of the HTTP API. A key is known by its id and shown by its secret, of which only a digest is stored.
CREATE TABLE api_keys (
    key_id       text PRIMARY KEY,
    tenant       text NOT NULL,
    name         text NOT NULL,
    secret_hash  bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    scopes       text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'write', 'operate', 'admin']),
    rate         double precision CHECK (rate > 0),
    created_at   timestamptz NOT NULL DEFAULT tidewheel_now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
COMMENT ON COLUMN api_keys.tenant IS '* for all tenants';
COMMENT ON COLUMN api_keys.secret_hash IS 'SHA-256 of a secret with 256 random bits';
COMMENT ON COLUMN api_keys.rate IS 'requests a second; null: the setting of the process';
COMMENT ON COLUMN api_keys.last_used_at IS 'written at most once a minute';
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, created_at, key_id);

-- Changes and operations, by whichever door. Rows are written in the transaction of their change.
CREATE TABLE audit_log (
    id             bigint GENERATED ALWAYS AS IDENTITY,
    at             timestamptz NOT NULL DEFAULT tidewheel_now(),
    tenant         text NOT NULL,
    door           text NOT NULL CHECK (door IN ('rest', 'kafka', 'cli', 'client', 'console')),
    actor_kind     text NOT NULL CHECK (actor_kind IN ('key', 'local', 'user', 'message', 'role', 'system')),
    actor          text NOT NULL,
    named          text,
    key_id         text,
    action         text NOT NULL,
    object         text NOT NULL,
    request_id     text,
    version_before integer,
    version_after  integer,
    objects        bigint NOT NULL DEFAULT 1,
    result         text NOT NULL DEFAULT 'accepted',
    PRIMARY KEY (at, id)
);
COMMENT ON COLUMN audit_log.tenant IS '* for what concerns the whole installation';
COMMENT ON COLUMN audit_log.actor IS 'name of the key, the user of the operating system, or the coordinates of the message';
COMMENT ON COLUMN audit_log.named IS 'the person that the sender has named; nothing verifies it';
COMMENT ON COLUMN audit_log.objects IS 'how many objects a batch has changed, or how often the change was refused within a minute';
COMMENT ON COLUMN audit_log.result IS 'accepted, or the code of the refusal';
CREATE INDEX audit_log_by_tenant ON audit_log (tenant, at, id);
CREATE INDEX audit_log_by_object ON audit_log (tenant, object, at, id);

-- Rows never change, but a row counts its repeats for a minute. None is deleted before 30 days are over.
CREATE FUNCTION tidewheel_refuse_audit_change() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < tidewheel_now() - interval '30 days' THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.at > tidewheel_now() - interval '2 minutes' AND NEW.objects > OLD.objects
       AND to_jsonb(NEW) - 'objects' = to_jsonb(OLD) - 'objects' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'audit_log: its rows are not changed, and not deleted before 30 days are over'
        USING ERRCODE = 'insufficient_privilege', HINT = 'TIDEWHEEL_AUDIT_RETENTION is the period after which schedulers delete them';
END
$$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION tidewheel_refuse_audit_change();
