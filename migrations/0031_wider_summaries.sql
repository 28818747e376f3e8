-- The BRIN index of a new day of finished_runs has ranges of 128 pages in place of 16. PostgreSQL notes at most 256 ranges to summarize
-- until a worker of autovacuum takes them. With 16 pages the list was full from 5,000 runs a second on: further ranges waited for a
-- vacuum, readers of ends scanned them, and PostgreSQL logged the whole statement for each. ALTER INDEX does not take the option on the
-- partitioned parent, so the function sets it. The rest is as before.
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
    v_index regclass;
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
    FOR v_index IN SELECT i.indexrelid::regclass FROM pg_index AS i
                     JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS a ON a.oid = c.relam
                    WHERE i.indrelid = v_name::regclass AND a.amname = 'brin' LOOP
        EXECUTE format('ALTER INDEX %s SET (pages_per_range = 128)', v_index);
        EXECUTE format('REINDEX INDEX %s', v_index); -- of an empty table
    END LOOP;
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
