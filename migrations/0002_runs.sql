-- Runs: the open ones, the finished ones, attempts, cancellations, dead letters, backfills.
-- tidewheel/postgres/partitions.py creates the partitions, one per day. They are cut by the instant at which the database
-- writes a row, never by one that a client can choose. There is no default partition.

-- One row from create_runs until the run is terminal, written with its outbox row. The primary key makes occurrences
-- unique. Sweep, cancel, deadlines and lists read it.
CREATE TABLE job_runs (
    run_id               uuid PRIMARY KEY,
    job_id               uuid NOT NULL,
    tenant               text NOT NULL,
    shard                smallint NOT NULL,
    queue                text NOT NULL,
    lane                 text NOT NULL CHECK (lane IN ('critical', 'standard', 'batch')),
    handler              text NOT NULL,
    cause                text NOT NULL CHECK (cause IN ('timer', 'trigger', 'backfill', 'workflow', 'retry')),
    overlap              text NOT NULL CHECK (overlap IN (
        'skip', 'buffer_one', 'buffer_all', 'cancel_other', 'terminate_other', 'allow_all')),
    state                text NOT NULL CHECK (state IN (
        'queued', 'buffered', 'running', 'waiting', 'retrying', 'cancelling', 'blocked')),
    job_version          integer NOT NULL,
    attempt              integer NOT NULL DEFAULT 0,
    failed_attempts      integer NOT NULL DEFAULT 0,
    lost_attempts        integer NOT NULL DEFAULT 0,
    gates                smallint NOT NULL DEFAULT 0,
    moved_ahead          boolean NOT NULL DEFAULT false,
    scheduled_at         timestamptz NOT NULL,
    publish_at           timestamptz NOT NULL,
    deadline_at          timestamptz,
    created_at           timestamptz NOT NULL,
    started_at           timestamptz,
    executor_id          uuid,
    claimed_from         text,
    schedule_to_close_at timestamptz,
    external_deadline_at timestamptz,
    parent_run_id        uuid,
    root_run_id          uuid,
    request_id           text,
    requested_from       text,
    workflow_run_id      uuid,
    generation           smallint,
    concurrency_key      text,
    key_id               bigint,
    waits_for            bigint,
    waits_from           timestamptz,
    priority             smallint,
    order_no             bigint
) WITH (
    -- A claim makes the row longer and changes no indexed column. With room for a second version of each row it stays
    -- on its page and touches no index (docs/performance.md).
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN job_runs.handler IS 'what an executor must have: a handler''s name, or tidewheel. and the type of another target';
COMMENT ON COLUMN job_runs.gates IS 'bits of tidewheel/runs.py: what a claim or an end does beyond the row; 0 for most runs. 1: another run of the job has come, or the run is the job''s active run. 2: a run of a workflow. 4: the run has a concurrency key. 8: it holds a place of that key. 16: it holds a place of its tenant. 32: it has a place in the order of its key. 64: a trigger has replaced its inputs. 128: its occurrence keeps its place as the active run. 256: the next run of its order starts though it fails';
COMMENT ON COLUMN job_runs.root_run_id IS 'the first run of its chain of retries by clients';
COMMENT ON COLUMN job_runs.workflow_run_id IS 'the run of the root, if the run belongs to an occurrence of a workflow';
COMMENT ON COLUMN job_runs.generation IS 'of a run of a workflow: 0, and one more for each resume';
COMMENT ON COLUMN job_runs.key_id IS 'the hash of tenant and concurrency_key: the row of run_keys; of an ordered run the row of order_keys';
COMMENT ON COLUMN job_runs.order_no IS 'the number of an ordered run among the runs of its key';
COMMENT ON COLUMN job_runs.waits_for IS 'the key_id while the run is buffered because its key has no place';
COMMENT ON COLUMN job_runs.waits_from IS 'its place among those that wait for the key: scheduled_at, less 30 s for each step of priority; of a run that its tenant''s rate holds: its own time';
COMMENT ON COLUMN job_runs.priority IS '0 to 9; null: 5';
COMMENT ON COLUMN job_runs.moved_ahead IS 'true if the run may start before its scheduled time';
COMMENT ON COLUMN job_runs.publish_at IS 'the earliest time of a claim; infinity while buffered, blocked or waiting';
COMMENT ON COLUMN job_runs.deadline_at IS 'the earliest timeout that the scheduler enforces: schedule_to_start until an attempt starts, schedule_to_close_at, external_deadline_at, an external heartbeat';
COMMENT ON COLUMN job_runs.executor_id IS 'the executor that owns the attempt; of a waiting run the one that started it';
COMMENT ON COLUMN job_runs.claimed_from IS 'the message of the last claim as topic/partition/offset@timestamp, or sweep; null while the executor keeps it, until the attempt ends';
COMMENT ON COLUMN job_runs.requested_from IS 'the message of the request that created the run as topic/partition/offset; null if it did not come through Kafka';
COMMENT ON COLUMN job_runs.schedule_to_close_at IS 'the time at which schedule_to_close expires';
COMMENT ON COLUMN job_runs.external_deadline_at IS 'the time limit for the external completion of a waiting run';
CREATE INDEX job_runs_due ON job_runs (queue, lane, tenant, publish_at); -- by tenant, so that no backlog hides another tenant's runs
CREATE INDEX job_runs_by_job ON job_runs (job_id, scheduled_at);
-- Lists of a tenant never walk another's rows. The condition holds for all rows. Claims do not state it, so no plan of theirs
-- takes this index in place of the primary key: a skip scan of it looks cheap while the table is empty.
CREATE INDEX job_runs_by_tenant ON job_runs (tenant, run_id) WHERE shard >= 0;
CREATE INDEX job_runs_moved_ahead ON job_runs (job_id) WHERE moved_ahead;
CREATE INDEX job_runs_deadline ON job_runs (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX job_runs_by_workflow ON job_runs (workflow_run_id) WHERE workflow_run_id IS NOT NULL;
CREATE INDEX job_runs_by_key ON job_runs (key_id, run_id) WHERE key_id IS NOT NULL; -- for the repair of a key's counter
CREATE INDEX job_runs_waiting ON job_runs (waits_for, waits_from, run_id) WHERE waits_for IS NOT NULL; -- finds a key's next first
-- The runs that wait behind the active run of their job. Without it an end walks all runs of the job that its tenant's rate
-- holds. `publish_at` has an index already, so this one makes no claim longer.
CREATE INDEX job_runs_by_turn ON job_runs (job_id, scheduled_at, run_id) WHERE publish_at = 'infinity' AND waits_for IS NULL;
CREATE INDEX job_runs_in_order ON job_runs (key_id, order_no) WHERE order_no IS NOT NULL; -- finds the next run of an order

-- The outcome of each run, complete when it is made: written once, by the transaction that deletes its row of job_runs.
-- The index by job is walked backwards for a job's latest runs.
CREATE TABLE finished_runs (
    run_id        uuid NOT NULL,
    job_id        uuid NOT NULL,
    tenant        text NOT NULL,
    job_version   integer NOT NULL,
    shard         smallint NOT NULL,
    cause         text NOT NULL,
    queue         text NOT NULL,
    lane          text NOT NULL,
    scheduled_at  timestamptz NOT NULL,
    publish_at    timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    state         text NOT NULL CHECK (state IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'skipped')),
    attempt       integer NOT NULL,
    executor_id   uuid,
    claimed_from  text,
    parent_run_id uuid,
    root_run_id   uuid,
    request_id    text,
    reason        text,
    error_type    text,
    requested_from text,
    workflow_run_id uuid,
    generation    smallint,
    concurrency_key text
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE finished_runs IS 'each partition has a unique index on run_id as well';
COMMENT ON COLUMN finished_runs.started_at IS 'the start of the last attempt; null if the run ended between two attempts, or before the first';
CREATE INDEX finished_runs_by_job ON finished_runs (job_id, scheduled_at);
CREATE INDEX finished_runs_by_tenant ON finished_runs (tenant, run_id); -- for lists, as job_runs_by_tenant
CREATE INDEX finished_runs_by_end ON finished_runs USING brin (finished_at) WITH (pages_per_range = 16, autosummarize = on); -- for the stream of changes

-- All runs, open and finished, in one statement: a run that ends between two statements is in neither result.
CREATE VIEW runs WITH (security_invoker = true) AS
SELECT run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at, started_at,
       NULL::timestamptz AS finished_at, state, attempt, executor_id, claimed_from, parent_run_id, root_run_id, request_id,
       NULL::text AS reason, NULL::text AS error_type, deadline_at, requested_from, workflow_run_id, generation,
       concurrency_key
  FROM job_runs
 UNION ALL
SELECT run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at, started_at,
       finished_at, state, attempt, executor_id, claimed_from, parent_run_id, root_run_id, request_id,
       reason, error_type, NULL::timestamptz, requested_from, workflow_run_id, generation, concurrency_key
  FROM finished_runs;

-- The inputs of a run beyond its job's version, and the progress of its attempt. Most runs have no row here.
CREATE TABLE run_inputs (
    run_id               uuid NOT NULL,
    created_at           timestamptz NOT NULL,
    tenant               text NOT NULL,
    payload              bytea,
    payload_content_type text,
    labels               jsonb,
    overlap              text,
    traceparent          text,
    checkpoint           bytea,
    checkpoint_attempt   integer,
    late_ms              bigint,
    progress             bytea,
    progress_at          timestamptz,
    progress_attempt     integer,
    PRIMARY KEY (run_id, created_at)
) PARTITION BY RANGE (created_at);
COMMENT ON COLUMN run_inputs.created_at IS 'that of the run; the time of its end if it was open for more than a day';
COMMENT ON COLUMN run_inputs.late_ms IS 'the delay of a run that catches up a missed occurrence';
COMMENT ON COLUMN run_inputs.progress_attempt IS 'the attempt that reported progress';

-- The active run of each job whose runs have met, where the policy limits overlaps. A claim that decides about them
-- locks this row before it reads further, and the active run's end deletes it.
CREATE TABLE active_runs (
    job_id      uuid PRIMARY KEY,
    tenant      text NOT NULL,
    run_id      uuid NOT NULL,
    has_waiters boolean NOT NULL DEFAULT false,
    held_by     uuid
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN active_runs.has_waiters IS 'true if runs may wait: without it a release is one DELETE';
COMMENT ON COLUMN active_runs.held_by IS 'the root''s run of the occurrence that keeps the place until its end, after run_id has ended';
CREATE INDEX active_runs_held ON active_runs (job_id) WHERE held_by IS NOT NULL;
CREATE INDEX active_runs_waiting ON active_runs (job_id) WHERE has_waiters;

-- Concurrency keys: the places of each key that runs hold. The transaction that starts an attempt of a keyed run, or ends one,
-- locks this row, after all other rows. A key has a row from its first claim on, until 10 minutes after its last one.
CREATE TABLE run_keys (
    key_id      bigint PRIMARY KEY,
    tenant      text NOT NULL,
    key         text NOT NULL,
    at_once     integer,
    every_us    bigint,
    burst       integer NOT NULL,
    running     integer NOT NULL DEFAULT 0,
    unclaimed   integer NOT NULL DEFAULT 0,
    has_waiters boolean NOT NULL DEFAULT false,
    tat         timestamptz,
    wake_at     timestamptz,
    used_at     timestamptz NOT NULL DEFAULT tidewheel_now()
) WITH (
    -- Claims and ends change no indexed column: with room for a second version of each row it stays on its page.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN run_keys.key_id IS '64 bits of a hash of tenant and key';
COMMENT ON COLUMN run_keys.key IS 'empty for the row that counts a tenant''s runs in flight';
COMMENT ON COLUMN run_keys.at_once IS 'the number of places, by key_limits, the job whose run was claimed last, or the tenant''s limit; null for no bound';
COMMENT ON COLUMN run_keys.every_us IS 'the microseconds between two starts; null for no rate';
COMMENT ON COLUMN run_keys.burst IS 'the number of starts at once after a rest';
COMMENT ON COLUMN run_keys.running IS 'the number of open runs whose gates show a place of this key';
COMMENT ON COLUMN run_keys.unclaimed IS 'how many of these runs were promoted and have not started';
COMMENT ON COLUMN run_keys.has_waiters IS 'true if runs may wait for a place: no run without a place starts';
COMMENT ON COLUMN run_keys.tat IS 'the time at which the whole burst is free again';
COMMENT ON COLUMN run_keys.wake_at IS 'the time from which the scheduler gives free places to waiting runs; null if an end does';
CREATE INDEX run_keys_wake ON run_keys (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX run_keys_by_key ON run_keys (tenant, key COLLATE "C"); -- for lists, and for the keys of a prefix

-- Limits that operators set: of one key, or of all keys with a prefix. They replace those of jobs. The longest prefix applies.
CREATE TABLE key_limits (
    tenant    text NOT NULL,
    is_prefix boolean NOT NULL,
    key       text COLLATE "C" NOT NULL,
    at_once   integer,
    every_us  bigint,
    burst     integer NOT NULL,
    set_by    text NOT NULL,
    set_at    timestamptz NOT NULL DEFAULT tidewheel_now(),
    PRIMARY KEY (tenant, is_prefix, key)
);
COMMENT ON COLUMN key_limits.key IS 'the key, or the prefix without its asterisk';

-- Attempts that did not succeed. The attempt that made its run succeed has no row: finished_runs holds it.
CREATE TABLE attempts (
    run_id        uuid NOT NULL,
    attempt       integer NOT NULL,
    tenant        text NOT NULL,
    executor_id   uuid,
    started_at    timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL,
    outcome       text NOT NULL CHECK (outcome IN (
        'succeeded', 'failed', 'timed_out', 'cancelled', 'lost', 'released', 'snoozed')),
    error_type    text,
    error_message text,
    claimed_from  text,
    PRIMARY KEY (run_id, attempt, started_at)
) PARTITION BY RANGE (started_at);

-- Every attempt that has ended.
CREATE VIEW ended_attempts WITH (security_invoker = true) AS
SELECT run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, error_type, error_message, claimed_from
  FROM attempts
 UNION ALL
SELECT run_id, attempt, tenant, executor_id, started_at, finished_at, 'succeeded', NULL, NULL, claimed_from
  FROM finished_runs
 WHERE state = 'succeeded';

-- Results, tracebacks and output: kept for a shorter time than their attempts. An attempt without any has no row.
CREATE TABLE attempt_outputs (
    run_id       uuid NOT NULL,
    attempt      integer NOT NULL,
    started_at   timestamptz NOT NULL,
    tenant       text NOT NULL,
    result       bytea,
    trace        text,
    output       bytea,
    output_bytes bigint,
    PRIMARY KEY (run_id, attempt, started_at)
) PARTITION BY RANGE (started_at);
COMMENT ON COLUMN attempt_outputs.started_at IS 'that of the attempt';
COMMENT ON COLUMN attempt_outputs.output_bytes IS 'the number of bytes written in all, of which output holds the last 64 KiB';

CREATE TABLE signals (
    run_id      uuid NOT NULL,
    attempt     integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('cancel', 'terminate')),
    tenant      text NOT NULL,
    executor_id uuid NOT NULL,
    created_at  timestamptz NOT NULL,
    reason      text, -- of the cancel, for the end of the run
    PRIMARY KEY (run_id, attempt, kind)
);
CREATE INDEX signals_by_executor ON signals (executor_id);

CREATE TABLE cancellations (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          text NOT NULL,
    job_id          uuid,
    queue           text,
    lane            text,
    handler         text,
    cause           text,
    created_before  timestamptz NOT NULL,
    created_by      text,
    finished_at     timestamptz,
    labels          jsonb,
    include_started boolean NOT NULL DEFAULT false,
    cancelled_count bigint NOT NULL DEFAULT 0,
    reason          text,
    created_at      timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON TABLE cancellations IS 'filters that every claim reads until their runs and events are written';
COMMENT ON COLUMN cancellations.labels IS 'only runs of jobs with these labels at that time, which are in cancelled_jobs';
COMMENT ON COLUMN cancellations.include_started IS 'true if runs that have started are cancelled too';
COMMENT ON COLUMN cancellations.cancelled_count IS 'the number of runs that have ended or have a cancel request so far';
CREATE INDEX cancellations_open ON cancellations (tenant) WHERE finished_at IS NULL;

-- A table, because every claim looks jobs up here: an array of ten thousand would be unpacked for each run.
CREATE TABLE cancelled_jobs (
    cancellation_id bigint NOT NULL,
    job_id          uuid NOT NULL,
    tenant          text NOT NULL,
    PRIMARY KEY (cancellation_id, job_id)
);
COMMENT ON TABLE cancelled_jobs IS 'the jobs with the labels of a cancellation when it was accepted';

-- Cancels by id that met a run whose row a long transaction holds. From the commit of such a row on no executor claims the
-- run, and no attempt ends it as other than cancelled. The scheduler ends it, or requests its attempt to stop, within about a
-- second of that transaction's end. Two requests to cancel one run do no harm.
CREATE TABLE pending_cancels (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id     uuid NOT NULL,
    tenant     text NOT NULL,
    reason     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT tidewheel_now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX pending_cancels_by_run ON pending_cancels (run_id);
COMMENT ON TABLE pending_cancels IS 'run.cancel requests for runs whose rows another transaction held';

-- Freezes: claims refuse the runs that a row names, and firing holds the timers that it names. A thawed row goes when the
-- scheduler has released its timers, so this table is tiny: a claim looks into it for each run while it has a row.
CREATE TABLE freezes (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text,
    queue      text,
    labels     jsonb,
    key_prefix text,
    by_job     boolean NOT NULL GENERATED ALWAYS AS (labels IS NOT NULL OR key_prefix IS NOT NULL) STORED,
    reason     text,
    created_by text,
    created_at timestamptz NOT NULL DEFAULT tidewheel_now(),
    thawed_at  timestamptz,
    settles_at xid8,
    settled    boolean NOT NULL DEFAULT false,
    by_operator boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE freezes IS 'a column that is null does not narrow the freeze';
COMMENT ON COLUMN freezes.by_job IS 'true if frozen_jobs holds its jobs: a run shows neither labels nor key';
COMMENT ON COLUMN freezes.created_by IS 'the name that the request gives, which nothing verifies';
COMMENT ON COLUMN freezes.thawed_at IS 'from here on it names nothing; its timers are still to be released';
COMMENT ON COLUMN freezes.settles_at IS 'once all transactions below have ended, every later submit sees the freeze';
COMMENT ON COLUMN freezes.settled IS 'true if the jobs of those transactions are in frozen_jobs too';
COMMENT ON COLUMN freezes.by_operator IS 'true for the pause of a tenant that an actor with the rights of all tenants has begun: no key of the tenant ends it';
CREATE POLICY of_fleet ON freezes FOR SELECT USING (tenant IS NULL); -- beside that of all tables (row_security.py)

CREATE TABLE frozen_jobs (
    freeze_id bigint NOT NULL,
    job_id    uuid NOT NULL,
    tenant    text NOT NULL,
    PRIMARY KEY (freeze_id, job_id)
);
COMMENT ON TABLE frozen_jobs IS 'the jobs with the labels and the key prefix of a freeze, kept by each submit while it stands';

-- The effects of a completion in a client's own transaction. A row commits or rolls back with the completion. The
-- scheduler applies and deletes it within about a second. The run is the primary key: a run ends once.
CREATE TABLE deferred_effects (
    run_id         uuid PRIMARY KEY,
    job_id         uuid NOT NULL,
    tenant         text NOT NULL,
    ended_at       timestamptz NOT NULL,
    chain_at       timestamptz,
    reset_failures boolean NOT NULL,
    inputs_at      timestamptz,
    release_job    boolean NOT NULL,
    key_id         bigint,
    held_tenant    boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON COLUMN deferred_effects.held_tenant IS 'true if the run held a place of its tenant';
COMMENT ON COLUMN deferred_effects.chain_at IS 'the run''s scheduled time, if the job''s next fire time counts from its end';
COMMENT ON COLUMN deferred_effects.reset_failures IS 'true if the job''s consecutive failures are to be reset';
COMMENT ON COLUMN deferred_effects.inputs_at IS 'the run''s creation, if its inputs move to the day of its end';
COMMENT ON COLUMN deferred_effects.release_job IS 'true if the run may be its job''s active run';
COMMENT ON COLUMN deferred_effects.key_id IS 'the key of which the run held a place';

-- An occurrence of a root that has children, from the drain of the root's release on. It ends when no run of it is
-- pending. Retention deletes it.
CREATE TABLE workflows (
    root_run_id  uuid PRIMARY KEY,
    tenant       text NOT NULL,
    root_job_id  uuid NOT NULL,
    shard        smallint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    graph_at     timestamptz NOT NULL,
    state        text NOT NULL CHECK (state IN ('open', 'paused', 'cancelling', 'timing_out', 'succeeded', 'failed',
                                                  'cancelled', 'timed_out')),
    generation   smallint NOT NULL DEFAULT 0,
    pending      integer NOT NULL,
    failed       integer NOT NULL DEFAULT 0,
    cancelled    integer NOT NULL DEFAULT 0,
    reason       text,
    created_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    deadline_at  timestamptz
);
COMMENT ON COLUMN workflows.root_job_id IS 'the nil UUID for a batch';
COMMENT ON COLUMN workflows.graph_at IS 'the instant whose edges and versions hold: scheduled_at, or the start of the root''s run if that was earlier';
COMMENT ON COLUMN workflows.pending IS 'the number of its runs whose release is not drained yet';
COMMENT ON COLUMN workflows.failed IS 'the number of its runs that failed or timed out, in this generation';
COMMENT ON COLUMN workflows.cancelled IS 'the number of its runs that were cancelled, in this generation';
CREATE INDEX workflows_by_job ON workflows (root_job_id, scheduled_at);
CREATE INDEX workflows_by_tenant ON workflows (tenant, root_run_id) WHERE root_job_id <> '00000000-0000-0000-0000-000000000000';
CREATE INDEX workflows_open ON workflows (root_run_id, tenant) WHERE finished_at IS NULL; -- the tenant: no row of another is read for it
CREATE INDEX workflows_deadline ON workflows (deadline_at) WHERE deadline_at IS NOT NULL AND state IN ('open', 'paused');
CREATE INDEX workflows_by_end ON workflows (finished_at) WHERE finished_at IS NOT NULL;

-- The marks of a child with several parents, from the end of the first one to that of the last.
CREATE TABLE joins (
    child_run_id uuid PRIMARY KEY,
    root_run_id  uuid NOT NULL,
    tenant       text NOT NULL,
    parents      integer NOT NULL,
    marked       integer NOT NULL,
    unmet        integer NOT NULL
) WITH (fillfactor = 70);
COMMENT ON COLUMN joins.marked IS 'the number of parents that have ended';
COMMENT ON COLUMN joins.unmet IS 'the number of parents whose end does not meet the condition';
CREATE INDEX joins_by_root ON joins (root_run_id);

-- The ends of runs of workflows, written by the transactions that end them. The scheduler drains a row: it writes the
-- runs of the children, and deletes the row in the same transaction.
CREATE TABLE releases (
    id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 100) PRIMARY KEY,
    shard        smallint NOT NULL,
    due_at       timestamptz NOT NULL,
    root_run_id  uuid NOT NULL,
    generation   smallint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    graph_at     timestamptz,
    run_id       uuid NOT NULL,
    job_id       uuid NOT NULL,
    tenant       text NOT NULL,
    state        text NOT NULL,
    began        boolean NOT NULL,
    started_at   timestamptz,
    holds        boolean NOT NULL,
    cursor_id    uuid,
    failures     smallint NOT NULL DEFAULT 0,
    error        text,
    traceparent  text
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN releases.shard IS 'that of the root';
COMMENT ON COLUMN releases.graph_at IS 'of the root''s first run: as in workflows';
COMMENT ON COLUMN releases.due_at IS 'infinity while the occurrence is paused, and of a release that no drain could pass on';
COMMENT ON COLUMN releases.began IS 'false if no attempt of the run had started';
COMMENT ON COLUMN releases.holds IS 'true if the run is the root''s, and its place as the active run stays with the occurrence';
COMMENT ON COLUMN releases.failures IS 'drains that failed; after the last one due_at is infinity, and error has its error';
COMMENT ON COLUMN releases.traceparent IS 'the trace context of the children''s runs; null without traces';
COMMENT ON COLUMN releases.cursor_id IS 'the last child that was processed, of a run with many';
CREATE INDEX releases_due ON releases (shard, due_at, id);
CREATE INDEX releases_by_root ON releases (root_run_id);
CREATE INDEX releases_failed ON releases (id) WHERE error IS NOT NULL;

-- A batch: runs that one request or several have written, with the jobs that it triggers. Its row of workflows has the
-- same id, no root, and the counts of its runs. Retention deletes both (docs/adr/0066-batches.md).
CREATE TABLE batches (
    batch_id            uuid PRIMARY KEY,
    tenant              text NOT NULL,
    open                boolean NOT NULL,
    total               integer NOT NULL,
    succeeded           integer NOT NULL DEFAULT 0,
    first_failed_run_id uuid,
    callbacks           bytea NOT NULL
);
CREATE INDEX batches_by_tenant ON batches (tenant, batch_id);
COMMENT ON COLUMN batches.open IS 'true while runs may come from anywhere: it counts as one pending run';
COMMENT ON COLUMN batches.total IS 'the number of its runs';
COMMENT ON COLUMN batches.callbacks IS 'JSON: by name, the key of a job and the payload of its trigger';

CREATE TABLE batch_runs (
    batch_id uuid NOT NULL,
    ref      text NOT NULL,
    tenant   text NOT NULL,
    run_id   uuid NOT NULL,
    job_id   uuid NOT NULL,
    delay_ms bigint,
    PRIMARY KEY (batch_id, ref)
);
COMMENT ON COLUMN batch_runs.run_id IS 'the latest run of the ref: a resume replaces those that it runs again';
COMMENT ON COLUMN batch_runs.delay_ms IS 'the time from the end of its parents to its start';
CREATE INDEX batch_runs_by_run ON batch_runs (run_id);

-- The edges between the runs of a batch. A drain reads those of the parents that have ended.
CREATE TABLE run_edges (
    batch_id      uuid NOT NULL,
    parent_run_id uuid NOT NULL,
    child_run_id  uuid NOT NULL,
    tenant        text NOT NULL,
    condition     text NOT NULL CHECK (condition IN ('success', 'failure', 'always')),
    PRIMARY KEY (batch_id, parent_run_id, child_run_id)
);
CREATE INDEX run_edges_by_child ON run_edges (child_run_id);

CREATE TABLE failed_runs (
    run_id        uuid PRIMARY KEY,
    job_id        uuid NOT NULL,
    tenant        text NOT NULL,
    job_version   integer NOT NULL,
    cause         text NOT NULL,
    queue         text NOT NULL,
    lane          text NOT NULL,
    scheduled_at  timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    state         text NOT NULL CHECK (state IN ('failed', 'timed_out')),
    attempt       integer NOT NULL,
    error_type    text,
    error_message text
);
COMMENT ON TABLE failed_runs IS 'copies of failed runs, which outlive their partition of finished_runs';
CREATE INDEX failed_runs_by_tenant ON failed_runs (tenant, run_id);
CREATE INDEX failed_runs_by_end ON failed_runs (finished_at);

CREATE TABLE dead_letters (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          text,
    kind            text NOT NULL CHECK (kind IN ('run', 'message')),
    run_id          uuid UNIQUE,
    job_id          uuid,
    topic           text,
    partition       integer,
    "offset"        bigint,
    key             bytea,
    value           bytea,
    reason          text NOT NULL,
    created_at      timestamptz NOT NULL,
    redriven_run_id uuid,
    redriven_at     timestamptz,
    headers         bytea[],
    cut_from        bigint,
    UNIQUE (topic, partition, "offset")
);
COMMENT ON COLUMN dead_letters.redriven_run_id IS 'the latest run that it was redriven as; null for a message';
COMMENT ON COLUMN dead_letters.cut_from IS 'the bytes of the whole value, of which only the first 4 KiB are stored; null if all of it is stored';
COMMENT ON COLUMN dead_letters.headers IS 'of a target''s reply, as in outbox; they hold its task token, so they are published nowhere';
CREATE INDEX dead_letters_by_tenant ON dead_letters (tenant, created_at, id);
CREATE INDEX dead_letters_by_job ON dead_letters (job_id, created_at, id) WHERE job_id IS NOT NULL;

-- Redrives of the dead letters that match all filters; schedulers work them off at their rate, the oldest letter first.
CREATE TABLE redrives (
    redrive_id     uuid PRIMARY KEY,
    tenant         text NOT NULL,
    state          text NOT NULL CHECK (state IN ('running', 'paused', 'finished', 'cancelled')),
    kind           text CHECK (kind IN ('run', 'message')),
    ids            bigint[],
    job_id         uuid,
    status         text,
    error_type     text,
    queue          text,
    lane           text,
    since_at       timestamptz NOT NULL,
    until_at       timestamptz NOT NULL,
    rate           double precision,
    matched_count  bigint NOT NULL,
    redriven_count bigint NOT NULL DEFAULT 0,
    rejected_count bigint NOT NULL DEFAULT 0,
    rejections     jsonb NOT NULL,
    after_at       timestamptz NOT NULL,
    after_id       bigint NOT NULL,
    next_at        timestamptz NOT NULL,
    reason         text,
    created_at     timestamptz NOT NULL,
    finished_at    timestamptz
);
COMMENT ON COLUMN redrives.until_at IS 'the creation of the newest dead letter at the acceptance, or before';
COMMENT ON COLUMN redrives.rate IS 'dead letters a second; null for no bound';
COMMENT ON COLUMN redrives.matched_count IS 'the number of matching dead letters at the acceptance; 10,001 means that there may be more';
COMMENT ON COLUMN redrives.rejections IS 'the first hundred dead letters that could not be redriven, with the errors of each';
COMMENT ON COLUMN redrives.after_at IS 'with after_id: the last dead letter that was processed';
COMMENT ON COLUMN redrives.next_at IS 'the time of the next batch, by the rate';
CREATE INDEX redrives_open ON redrives (next_at) WHERE state = 'running';
CREATE INDEX redrives_by_tenant ON redrives (tenant, created_at);

-- Past ranges that are run on request; the scheduler creates their runs a few at a time. The ids of a backfill's runs
-- hold its created_at in their first 48 bits, and no other backfill of the job has the same.
CREATE TABLE backfills (
    backfill_id    uuid PRIMARY KEY,
    tenant         text NOT NULL,
    job_id         uuid NOT NULL,
    shard          smallint NOT NULL,
    state          text NOT NULL CHECK (state IN ('running', 'paused', 'finished', 'cancelled')),
    first_at       timestamptz NOT NULL,
    last_at        timestamptz NOT NULL,
    what           text NOT NULL CHECK (what IN ('missing_only', 'all')),
    versions       text NOT NULL CHECK (versions IN ('as_of', 'current')),
    job_version    integer NOT NULL,
    overlap        text,
    newest_first   boolean NOT NULL,
    max_concurrent integer NOT NULL,
    occurrences    bigint NOT NULL,
    expected_count bigint NOT NULL,
    created_count  bigint NOT NULL DEFAULT 0,
    existing_count bigint NOT NULL DEFAULT 0,
    cursor_at      timestamptz,
    request_id     text,
    requested_from text,
    traceparent    text,
    reason         text,
    created_at     timestamptz NOT NULL,
    finished_at    timestamptz
);
COMMENT ON COLUMN backfills.requested_from IS 'the message of the request as topic/partition/offset; null if it did not come through Kafka';
COMMENT ON COLUMN backfills.job_version IS 'the current version when the backfill was accepted';
COMMENT ON COLUMN backfills.overlap IS 'null: the policy of the job, or one after another if that allows no overlap';
COMMENT ON COLUMN backfills.occurrences IS 'the number of occurrences in the range when it was accepted';
COMMENT ON COLUMN backfills.expected_count IS 'the number of these that were to run';
COMMENT ON COLUMN backfills.created_count IS 'the number of runs that were created';
COMMENT ON COLUMN backfills.existing_count IS 'the number of occurrences that were not missing';
COMMENT ON COLUMN backfills.cursor_at IS 'the next time to decide; null if none is left';
COMMENT ON COLUMN backfills.created_at IS 'in whole milliseconds';
CREATE INDEX backfills_open ON backfills (shard, backfill_id) WHERE state IN ('running', 'paused');
CREATE UNIQUE INDEX backfills_by_job ON backfills (job_id, created_at);
CREATE INDEX backfills_by_tenant ON backfills (tenant, created_at);

-- The windows of triggers with dedupe: which run the triggers of a key have. A trigger locks the row before the run's.
CREATE TABLE dedupes (
    dedupe_id bigint PRIMARY KEY,
    tenant    text NOT NULL,
    job_id    uuid NOT NULL,
    run_id    uuid NOT NULL,
    first_at  timestamptz NOT NULL,
    until_at  timestamptz NOT NULL,
    runs_at   timestamptz NOT NULL
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN dedupes.dedupe_id IS '64 bits of a hash of the job and the key';
COMMENT ON COLUMN dedupes.run_id IS 'the run that the first trigger of the window has made';
COMMENT ON COLUMN dedupes.first_at IS 'the time of the first trigger of the window';
COMMENT ON COLUMN dedupes.until_at IS 'the end of the window; of a debounced run the time at which it is due';
COMMENT ON COLUMN dedupes.runs_at IS 'the time at which the run is due';
CREATE INDEX dedupes_by_end ON dedupes (until_at); -- the scheduler deletes windows that are over

-- The places in time of tenants with a rate of triggers, a row each: a ring of buckets, and since when runs are held.
CREATE TABLE tenant_rates (
    tenant       text PRIMARY KEY,
    per_second   double precision NOT NULL,
    first_bucket bigint NOT NULL DEFAULT 0,
    used         integer[] NOT NULL DEFAULT array_fill(0, ARRAY[64]),
    held_from    timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
COMMENT ON COLUMN tenant_rates.first_bucket IS 'the number of the first bucket, counted from 1970 in buckets of a second or longer';
COMMENT ON COLUMN tenant_rates.used IS 'the places that are taken in each bucket';
COMMENT ON COLUMN tenant_rates.held_from IS 'the time of the oldest held run: runs of this time or later are held behind it';

-- Ordering keys: the run of each key that may start, and what keeps the others waiting. A transaction that writes or ends an
-- ordered run locks this row, after all other rows. A key without open runs that is not blocked has no row.
CREATE TABLE order_keys (
    key_id     bigint PRIMARY KEY,
    tenant     text NOT NULL,
    key        text NOT NULL,
    next_no    bigint NOT NULL DEFAULT 0,
    head       uuid,
    blocked_by uuid,
    blocked_at timestamptz,
    wake_at    timestamptz
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN order_keys.key_id IS '64 bits of a hash of tenant and key';
COMMENT ON COLUMN order_keys.head IS 'the run that may start, until it has ended; the others are buffered';
COMMENT ON COLUMN order_keys.blocked_by IS 'the run whose failure blocks the key; a retry of it may be the head';
COMMENT ON COLUMN order_keys.wake_at IS 'the time from which the scheduler queues the next run; null if an end does';
CREATE INDEX order_keys_wake ON order_keys (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX order_keys_blocked ON order_keys (tenant, blocked_at, key_id) WHERE blocked_by IS NOT NULL;
CREATE INDEX order_keys_by_blocker ON order_keys (blocked_by) WHERE blocked_by IS NOT NULL;

-- Runs that failed before their turn in an order, as by schedule_to_start: the key is blocked by each at its turn. A transaction
-- that writes or deletes a row has locked the key, which has a row as long as one of these is there.
CREATE TABLE order_failures (
    key_id   bigint NOT NULL,
    order_no bigint NOT NULL,
    tenant   text NOT NULL,
    run_id   uuid NOT NULL,
    PRIMARY KEY (key_id, order_no)
);
COMMENT ON COLUMN order_failures.order_no IS 'the place of the run in its order, which a retry of it takes';
CREATE INDEX order_failures_by_run ON order_failures (run_id);

-- Days of finished runs that the archive has, in whole. While there is a row, retention drops no day that has none.
CREATE TABLE archived_days (
    day         date PRIMARY KEY,
    runs        bigint NOT NULL,
    bytes       bigint NOT NULL,
    id_days     integer[] NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON COLUMN archived_days.day IS 'in UTC, of the ends of its runs, as the partitions of finished_runs';
COMMENT ON COLUMN archived_days.id_days IS 'the days in the ids of its runs, as days since 1970: they find one by its id';

-- The days of finished runs, from an hour after their end on: what retention has done with each
-- (docs/adr/0075-retention.md).
CREATE TABLE run_days (
    day         date PRIMARY KEY,
    waits_for   text[] NOT NULL,
    closed_at   timestamptz,
    after_job   uuid,
    after_at    timestamptz,
    counted_at  timestamptz,
    dropped_at  timestamptz
);
COMMENT ON COLUMN run_days.waits_for IS 'the transactions that were open then: once they have ended, no row of the day can be added';
COMMENT ON COLUMN run_days.after_job IS 'with after_at: the last job and time that job_days has counted; null at the begin';
COMMENT ON COLUMN run_days.counted_at IS 'the time from which job_days has all its runs';
COMMENT ON COLUMN run_days.closed_at IS 'the time from which this is known: the day may be counted and archived';
COMMENT ON COLUMN run_days.dropped_at IS 'set before its partitions are dropped: its runs are no longer known to be complete';

-- The shorter periods of tenants, for all of their runs or for those of one state. A scheduler removes the runs day by day.
CREATE TABLE tenant_periods (
    tenant     text NOT NULL,
    state      text NOT NULL CHECK (state IN ('any', 'succeeded', 'failed', 'timed_out', 'cancelled', 'skipped')),
    keep       interval,
    kept_since date,
    removing   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, state)
);
COMMENT ON COLUMN tenant_periods.keep IS 'null for no period: the row stays, since runs are gone';
COMMENT ON COLUMN tenant_periods.kept_since IS 'the first day from which no run was removed yet; it moves before the runs of a day go';
COMMENT ON COLUMN tenant_periods.removing IS 'true until all runs of the day before kept_since are removed';

-- What the runs of a job were that ended on a day, counted when the day is closed. A bucket of durations or lateness is its number
-- times 2^32, plus its count; its bounds are in tidewheel/buckets.py.
CREATE TABLE job_days (
    job_id    uuid NOT NULL,
    day       date NOT NULL,
    tenant    text NOT NULL,
    succeeded bigint NOT NULL,
    failed    bigint NOT NULL,
    timed_out bigint NOT NULL,
    cancelled bigint NOT NULL,
    skipped   bigint NOT NULL,
    attempts  bigint NOT NULL,
    durations bigint[] NOT NULL,
    lateness  bigint[] NOT NULL,
    PRIMARY KEY (job_id, day)
);
COMMENT ON COLUMN job_days.durations IS 'of the last attempts, from their starts to the ends of their runs';
COMMENT ON COLUMN job_days.lateness IS 'of the last attempts, from the time at which they might start';
CREATE INDEX job_days_by_day ON job_days USING brin (day) WITH (pages_per_range = 16, autosummarize = on); -- rows come in this order

-- The last pass of retention, which operators see, and its position in the jobs.
CREATE TABLE retention_state (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    passed_at  timestamptz,
    behind     interval,
    held_by    text,
    after_job  uuid
);
COMMENT ON COLUMN retention_state.behind IS 'how much older than its period the oldest kept partition is; null if none is';
COMMENT ON COLUMN retention_state.held_by IS 'the cause for which that partition stays';
COMMENT ON COLUMN retention_state.after_job IS 'the last job that a pass looked at; null at the begin of a round';
