-- Bulk work that schedulers do in batches, at a rate. A kind of work knows what its filter and its cursor hold.
CREATE TABLE works (
    work_id        uuid PRIMARY KEY,
    tenant         text NOT NULL,
    kind           text NOT NULL,
    state          text NOT NULL CHECK (state IN ('running', 'paused', 'finished', 'cancelled')),
    filter         jsonb NOT NULL,
    rate           double precision,
    "cursor"       jsonb NOT NULL,
    matched_count  bigint NOT NULL,
    done_count     bigint NOT NULL DEFAULT 0,
    rejected_count bigint NOT NULL DEFAULT 0,
    rejections     jsonb NOT NULL,
    next_at        timestamptz NOT NULL,
    reason         text,
    created_at     timestamptz NOT NULL,
    finished_at    timestamptz
);
COMMENT ON COLUMN works.rate IS 'things a second; null for no bound';
COMMENT ON COLUMN works."cursor" IS 'the position of the last thing that was processed';
COMMENT ON COLUMN works.matched_count IS 'the number of matching things at the acceptance; 10,001 means that there may be more';
COMMENT ON COLUMN works.rejections IS 'the first hundred things that could not be done, with the errors of each';
COMMENT ON COLUMN works.next_at IS 'the time of the next batch, by the rate';
CREATE INDEX works_open ON works (next_at) WHERE state = 'running';
CREATE INDEX works_unfinished ON works (work_id) WHERE finished_at IS NULL;
CREATE INDEX works_by_tenant ON works (tenant, created_at);

-- The work of a redrive. For one release, redrives has a row for each work of this kind, for processes of the release before. The scheduler brings it up to date with what processes of the release before have written.
CREATE FUNCTION tidewheel_work_of(r redrives) RETURNS works LANGUAGE sql STABLE AS $$
    SELECT r.redrive_id, r.tenant, 'redrive', r.state,
           jsonb_strip_nulls(jsonb_build_object(
               'kind', r.kind, 'ids', r.ids, 'job_id', r.job_id, 'status', r.status, 'error_type', r.error_type,
               'queue', r.queue, 'lane', r.lane, 'since', r.since_at, 'until', r.until_at, 'redriven', false)),
           r.rate, jsonb_build_object('at', r.after_at, 'id', r.after_id), r.matched_count, r.redriven_count,
           r.rejected_count, r.rejections, r.next_at, r.reason, r.created_at, r.finished_at
$$;

INSERT INTO works SELECT (tidewheel_work_of(r)).* FROM redrives AS r;
