-- Locks that only Tidewheel's roles can take, in place of advisory locks, which any login can hold (docs/adr/0087-private-locks.md).
-- The tables without columns stay empty: what excludes is the lock on the table itself.
CREATE TABLE claims_lock ();
COMMENT ON TABLE claims_lock IS 'claims lock it ROW EXCLUSIVE; cancellations and freezes SHARE ROW EXCLUSIVE, until they commit';
CREATE TABLE kept_since_lock ();
COMMENT ON TABLE kept_since_lock IS 'who relies on the first kept day locks it ROW EXCLUSIVE; retention SHARE ROW EXCLUSIVE, while it moves that day';
CREATE TABLE retention_lock ();
COMMENT ON TABLE retention_lock IS 'a pass of retention, or the first archiving, locks it SHARE ROW EXCLUSIVE';
CREATE TABLE archive_lock ();
COMMENT ON TABLE archive_lock IS 'who writes the archive locks it SHARE ROW EXCLUSIVE';
CREATE TABLE restore_lock ();
COMMENT ON TABLE restore_lock IS 'a restore locks it SHARE ROW EXCLUSIVE';

CREATE TABLE tenant_locks (
    tenant text NOT NULL,
    name   text NOT NULL,
    PRIMARY KEY (tenant, name)
);
COMMENT ON TABLE tenant_locks IS
    'rows to lock, named graphs or rate: who changes the edges of a tenant''s jobs, or paces its held runs, locks one alone; who reads or writes them shares it';
INSERT INTO tenant_locks (tenant, name)
SELECT DISTINCT e.tenant, 'graphs' FROM job_edges AS e
UNION ALL
SELECT t.tenant, 'rate' FROM tenants AS t WHERE t.triggers_per_second IS NOT NULL;

CREATE TABLE relay_slices (
    slice     smallint PRIMARY KEY,
    member_id uuid
);
COMMENT ON COLUMN relay_slices.member_id IS 'the relay that publishes the slice while its row of members has recent heartbeats; else the slice is free';

-- The function locks the table of the days in place of an advisory lock. The rest is as before.
--
-- Creates and attaches the partition of a table for a day, if there is none. Only the owner of its parent attaches a partition, and
-- services own none. The table of a user is never touched.
-- A role that is no member of the owner creates days near today, and days that rows of an open run still go to.
CREATE OR REPLACE FUNCTION tidewheel_create_day(day_table text, day date) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    v_name   CONSTANT text := day_table || to_char(day, '_YYYYMMDD');
    v_unique CONSTANT text := CASE day_table WHEN 'finished_runs' THEN 'run_id' END; -- within a day, though it is not the partition key
    v_begin  CONSTANT timestamptz := day::timestamp AT TIME ZONE 'UTC';
    v_today  CONSTANT date := (tidewheel_now() AT TIME ZONE 'UTC')::date;
    v_scheduler text;
BEGIN
    IF day_table <> ALL (ARRAY['finished_runs', 'run_inputs', 'attempts', 'attempt_outputs']) THEN
        RAISE EXCEPTION '% has no days', day_table USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF day NOT BETWEEN v_today - 1 AND v_today + 7
       AND NOT pg_has_role(session_user, current_user, 'USAGE')
       AND NOT EXISTS (SELECT FROM job_runs AS r
                        WHERE r.created_at >= v_begin AND r.created_at < v_begin + interval '24 hours'
                           OR r.started_at >= v_begin AND r.started_at < v_begin + interval '24 hours') THEN
        RAISE EXCEPTION 'the day % is not between % and %, and no open run was created or started on it', day, v_today - 1, v_today + 7
            USING ERRCODE = 'invalid_parameter_value', HINT = 'only the owner of the tables creates other days';
    END IF;
    -- The lock that attaching takes, before the look: one transaction at a time creates partitions of a table.
    EXECUTE format('LOCK TABLE %I IN SHARE UPDATE EXCLUSIVE MODE', day_table);
    IF EXISTS (SELECT FROM pg_class AS c
                WHERE c.relispartition AND c.relnamespace = current_schema()::regnamespace AND c.relname = v_name) THEN
        RETURN; -- another process has created it since
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', v_name, day_table);
    IF v_unique IS NOT NULL THEN
        EXECUTE format('CREATE UNIQUE INDEX ON %I (%I)', v_name, v_unique);
    END IF;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                   day_table, v_name, to_char(day, 'YYYY-MM-DD 00:00:00+00'), to_char(day + 1, 'YYYY-MM-DD 00:00:00+00'));
    SELECT CASE WHEN value = 'true' THEN 'tidewheel' ELSE value #>> '{}' END || '_scheduler'
      INTO v_scheduler FROM settings WHERE name = 'service_roles';
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = v_scheduler) THEN
        EXECUTE format('GRANT SELECT, DELETE ON %I TO %I', v_name, v_scheduler); -- it removes rows of deleted tenants
    END IF;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION tidewheel_create_day SET search_path = %I, pg_temp', current_schema());
END
$$;
