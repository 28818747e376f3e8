-- What long work needs: deadlines, answers from outside, progress and output while an attempt runs, lineage of redriven
-- runs, cancellation by any filter.

-- What task tokens are made and checked with: a token is a signature, so nothing is written for it before it is handed
-- out. Whoever can read this table can end any run anyway.
INSERT INTO settings (name, value)
VALUES ('task_token_key', to_jsonb(encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex')));

-- So that firing decodes no definition to learn that nothing bounds its runs.
ALTER TABLE job_versions ADD COLUMN has_deadlines boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN job_versions.has_deadlines IS 'whether schedule_to_start or schedule_to_close bounds its runs';

ALTER TABLE open_runs DROP COLUMN token_hash;
ALTER TABLE open_runs ADD COLUMN schedule_to_close_at timestamptz, ADD COLUMN external_deadline_at timestamptz;
COMMENT ON COLUMN open_runs.deadline_at IS 'the earliest of its timeouts that PostgreSQL keeps: schedule_to_start until it has begun, schedule_to_close_at, external_deadline_at, a heartbeat from outside';
COMMENT ON COLUMN open_runs.schedule_to_close_at IS 'when schedule_to_close strikes';
COMMENT ON COLUMN open_runs.external_deadline_at IS 'while waiting: when the time for the answer from outside is over';
COMMENT ON COLUMN open_runs.handler IS 'what an executor must have: a handler''s name, tidewheel.shell, tidewheel.lambda; null where any will do';
COMMENT ON COLUMN open_runs.executor_id IS 'in whose hands it is; of a waiting run: in whose hands it was';

-- Progress of the attempt under way, beside the checkpoint that the next one receives.
ALTER TABLE run_inputs ADD COLUMN progress bytea, ADD COLUMN progress_at timestamptz, ADD COLUMN progress_attempt integer;
COMMENT ON COLUMN run_inputs.progress_attempt IS 'which attempt progress and progress_at are of';

-- Output may be kept before the attempt ends; output_bytes counts what was ever written, of which the last 64 KiB lie here.
ALTER TABLE attempt_outputs ADD COLUMN output_bytes bigint;

ALTER TABLE cancellations ADD COLUMN labels jsonb;
ALTER TABLE cancellations ADD COLUMN include_started boolean NOT NULL DEFAULT false;
ALTER TABLE cancellations ADD COLUMN cancelled_count bigint NOT NULL DEFAULT 0;
ALTER TABLE cancellations ADD COLUMN reason text;
ALTER TABLE cancellations ADD COLUMN created_at timestamptz NOT NULL DEFAULT tidewheel_now();
COMMENT ON COLUMN cancellations.labels IS 'only runs of the jobs that had these then: cancelled_jobs';
COMMENT ON COLUMN cancellations.include_started IS 'whether runs that have begun are cancelled too';
COMMENT ON COLUMN cancellations.cancelled_count IS 'runs ended or asked to stop so far';
CREATE INDEX cancellations_open ON cancellations (tenant) WHERE finished_at IS NULL;

-- In a table of its own, for every claim looks jobs up here: an array of ten thousand would be unpacked for each run.
CREATE TABLE cancelled_jobs (
    cancellation_id bigint NOT NULL,
    job_id          uuid NOT NULL,
    tenant          text NOT NULL,
    PRIMARY KEY (cancellation_id, job_id)
);
COMMENT ON TABLE cancelled_jobs IS 'the jobs that had the labels of a cancellation when it was accepted';

-- Dead letters: who is redriven stays, with what became of it; lists go by time, of a tenant or of one of its jobs.
ALTER TABLE dead_letters ADD COLUMN redriven_at timestamptz, ADD COLUMN headers bytea[];
COMMENT ON COLUMN dead_letters.headers IS 'of a target''s reply, as in outbox: its task token is one of them, so they are told nowhere else';
COMMENT ON COLUMN dead_letters.redriven_run_id IS 'the run that was made of it; null where it was a message';
DROP INDEX dead_letters_by_tenant;
CREATE INDEX dead_letters_by_tenant ON dead_letters (tenant, created_at, id);
CREATE INDEX dead_letters_by_job ON dead_letters (job_id, created_at, id) WHERE job_id IS NOT NULL;

ALTER TABLE executors ADD COLUMN group_protocol text, ADD COLUMN lease interval;
COMMENT ON COLUMN executors.lease IS 'how long its counter may stand still, as its own setting has it; null: as the reaper''s has it';
COMMENT ON COLUMN executors.handlers IS 'what it has: handlers'' names, and tidewheel.shell or tidewheel.lambda where it runs such targets';

ALTER TABLE executors ADD COLUMN last_claim_seq bigint;
COMMENT ON COLUMN executors.last_claim_seq IS 'of an executor in another language: the newest of its claims; null for the others';

-- What runs wait for that no executor has: told at most so often.
CREATE TABLE unhandled_announcements (
    tenant  text NOT NULL,
    queue   text NOT NULL,
    handler text NOT NULL,
    announced_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, queue, handler)
);
COMMENT ON TABLE unhandled_announcements IS 'when it was last announced that no executor of a queue has a handler; empty: that it has no executor';
