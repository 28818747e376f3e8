-- Functions that applications call in their own transactions.

-- Always raises an error, so that a zombie's transaction cannot be committed, even if its code ignores the error.
CREATE FUNCTION tidewheel_attempt_over(run_id uuid, attempt integer) RETURNS void
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION 'attempt % of run % is over', attempt, run_id
        USING HINT = 'it was cancelled, timed out or taken over: roll back; the run ends by another attempt, or has ended';
END
$$;

-- Triggers a run in the caller's own transaction, from any language; returns the request_id. It inserts a request into
-- the outbox, which commits or rolls back with the caller's rows. Intake applies it exactly once, by its request_id.
CREATE FUNCTION tidewheel_enqueue(
    key        text,
    payload    jsonb DEFAULT NULL,
    tenant     text DEFAULT 'default',
    delay      interval DEFAULT NULL,
    run_at     timestamptz DEFAULT NULL,
    labels     jsonb DEFAULT NULL,
    request_id text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    priority   integer DEFAULT NULL,
    overlap    text DEFAULT NULL,
    ordering_key   text DEFAULT NULL,
    on_failure     text DEFAULT NULL,
    dedupe_key     text DEFAULT NULL,
    dedupe_window  interval DEFAULT NULL,
    dedupe_mode    text DEFAULT NULL,
    dedupe_longest interval DEFAULT NULL
) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_variable
DECLARE
    v_shards  integer;
    v_prefix  text;
    v_request jsonb;
    v_job     record;
    v_what    text;
    v_key     text;
    v_filled  boolean;
    v_field   text;
    v_name    text;
    v_value   jsonb;
    v_bytes   integer;
    v_text    text;
    v_parts   text[];
    v_dedupe  jsonb;
    v_deduped boolean;
    v_free_at timestamptz;
    -- As tidewheel/jobs/values.py: what is not visible. Then blanks, and what no key may have.
    v_hidden  CONSTANT text := '\u0001-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f'
        || '\u2028-\u202e\u2060-\u206f\ue000-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff'
        || '\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a'
        || '\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\U000f0000-\U0010ffff'
        || '\U0001fffe-\U0001ffff\U0002fffe-\U0002ffff\U0003fffe-\U0003ffff\U0004fffe-\U0004ffff\U0005fffe-\U0005ffff'
        || '\U0006fffe-\U0006ffff\U0007fffe-\U0007ffff\U0008fffe-\U0008ffff\U0009fffe-\U0009ffff\U000afffe-\U000affff'
        || '\U000bfffe-\U000bffff\U000cfffe-\U000cffff\U000dfffe-\U000dffff\U000efffe-\U000effff';
    v_blanks  CONSTANT text := '\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000';
    v_no_key  CONSTANT text := '[' || v_hidden || ']|^[' || v_blanks || ']|[' || v_blanks || ']$';
BEGIN
    IF key IS NULL THEN
        RAISE EXCEPTION 'key: it is null' USING ERRCODE = 'null_value_not_allowed', HINT = 'give the key of a job';
    END IF;
    tenant := coalesce(tenant, 'default');
    IF delay IS NOT NULL AND run_at IS NOT NULL THEN
        RAISE EXCEPTION 'delay: delay and run_at exclude each other'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'leave one of them out';
    END IF;
    IF delay < interval '0' OR delay > interval '400 days' THEN
        RAISE EXCEPTION 'delay: % is not between 0 and 400 days', delay
            USING ERRCODE = 'invalid_parameter_value', HINT = 'for a later time submit a job with schedule {"once": …}';
    END IF;
    IF run_at < '1970-01-01 00:00:00Z' THEN
        RAISE EXCEPTION 'run_at: % lies before 1970', run_at
            USING ERRCODE = 'invalid_parameter_value', HINT = 'write a later instant';
    END IF;
    IF NOT isfinite(run_at) OR run_at > tidewheel_now() + interval '400 days' THEN
        RAISE EXCEPTION 'run_at: % is more than 400 days ahead', run_at
            USING ERRCODE = 'invalid_parameter_value', HINT = 'for a later time submit a job with schedule {"once": …}';
    END IF;
    IF octet_length(payload::text) > 262144 THEN
        RAISE EXCEPTION 'payload: it has % bytes, more than 262144', octet_length(payload::text)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'store it elsewhere and pass a reference';
    END IF;
    -- The limits of tidewheel/jobs/strict_json.py and values.py: a request that intake would refuse must not be
    -- committed.
    IF jsonb_path_exists(payload, 'strict $.**{32 to last} ? (@.type() == "object" || @.type() == "array")') THEN
        RAISE EXCEPTION 'payload: it is nested more than 32 deep' USING ERRCODE = 'program_limit_exceeded', HINT = 'flatten it';
    END IF;
    IF octet_length(payload::text) > 65536
       AND (SELECT count(*) > 32000
              FROM jsonb_path_query(payload, 'strict $.** ? (@.type() == "object" || @.type() == "array")')) THEN
        RAISE EXCEPTION 'payload: it holds more than 32000 arrays and objects'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'store it elsewhere and pass a reference';
    END IF;
    -- JSON has no such limits, but its readers do: 4300 digits of an integer, and the range of a double otherwise.
    IF octet_length(payload::text) > 308
       AND EXISTS (SELECT FROM jsonb_path_query(payload, 'strict $.** ? (@.type() == "number")') AS n (value)
                    WHERE abs(n.value::numeric) >= CASE WHEN strpos(n.value::text, '.') = 0 THEN 1e4300
                                                        ELSE 179769313486231580793e288 END) THEN
        RAISE EXCEPTION 'payload: it holds a number that is too long to read'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'write it as a string';
    END IF;
    IF jsonb_typeof(labels) <> 'object' OR jsonb_path_exists(labels, 'strict $.* ? (@.type() <> "string")') THEN
        RAISE EXCEPTION 'labels: % is no map of strings', left(labels::text, 100)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'write them as {"name": "value"}';
    END IF;
    IF (SELECT count(*) > 64
               OR bool_or(length(l.name) NOT BETWEEN 1 AND 63 OR length(l.value) > 255
                          OR l.name ~ ('[' || v_hidden || ']')
                          OR l.value ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f]')
          FROM jsonb_each_text(labels) AS l (name, value)) THEN
        RAISE EXCEPTION 'labels: there are too many, or one is too long, or holds what is no text'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'give at most 64, with names of 1 to 63 and values of up to 255 characters';
    END IF;
    IF priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority: % is not between 0 and 9', priority
            USING ERRCODE = 'invalid_parameter_value', HINT = 'write 0 to 9: 9 goes first, 5 is the default';
    END IF;
    request_id := coalesce(request_id, gen_random_uuid()::text);
    IF length(request_id) NOT BETWEEN 1 AND 255 OR request_id ~ v_no_key THEN
        RAISE EXCEPTION 'request_id: it has % characters, or some that no id may have', length(request_id)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'give 1 to 255 printable characters without spaces at the ends, or leave it out';
    END IF;

    FOR v_what, v_key IN
        VALUES ('concurrency_key', concurrency_key), ('ordering_key', ordering_key), ('dedupe_key', dedupe_key)
    LOOP
        IF length(v_key) NOT BETWEEN 1 AND 255 OR v_key ~ v_no_key THEN
            RAISE EXCEPTION '%: it has % characters, or some that no key may have', v_what, length(v_key)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'give 1 to 255 printable characters without spaces at the ends';
        END IF;
        IF regexp_replace(v_key, '\{payload(\.[^{}.]+)+\}', '', 'g') ~ '[{}]' THEN
            RAISE EXCEPTION '%: % has braces that name no field of the payload', v_what, v_key
                USING ERRCODE = 'invalid_parameter_value', HINT = 'write a field as {payload.customer}, or leave the braces out';
        END IF;
    END LOOP;
    FOR v_what, v_text, v_parts IN
        VALUES ('overlap', overlap, ARRAY['skip', 'buffer_one', 'buffer_all', 'cancel_other', 'terminate_other', 'allow_all']),
               ('on_failure', on_failure, ARRAY['block', 'skip']),
               ('dedupe_mode', dedupe_mode, ARRAY['reject', 'replace', 'debounce'])
    LOOP
        IF v_text <> ALL (v_parts) THEN
            RAISE EXCEPTION '%: % is not valid', v_what, quote_literal(left(v_text, 100))
                USING ERRCODE = 'invalid_parameter_value', HINT = 'write one of ' || array_to_string(v_parts, ', ');
        END IF;
    END LOOP;
    IF on_failure IS NOT NULL AND ordering_key IS NULL THEN
        RAISE EXCEPTION 'on_failure: it belongs to ordering_key'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give an ordering_key, or leave it out';
    END IF;
    IF dedupe_window NOT BETWEEN interval '1 ms' AND interval '30 days' THEN
        RAISE EXCEPTION 'dedupe_window: % is not between 1 ms and 30 days', dedupe_window
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give a window such as 10 min';
    END IF;
    IF dedupe_longest NOT BETWEEN interval '1 ms' AND interval '300 days' THEN
        RAISE EXCEPTION 'dedupe_longest: % is not between 1 ms and 300 days', dedupe_longest
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give a time such as 1 hour';
    END IF;

    SELECT j.shard, v.lane, v.overlap, v.key_template, v.concurrency_key, v.ordering_key, v.dedupe::jsonb AS dedupe,
           (SELECT coalesce(t.max_payload_bytes, 262144) FROM tenants AS t WHERE t.tenant = j.tenant) AS most
      INTO v_job
      FROM jobs AS j
      JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
     WHERE j.tenant = tidewheel_enqueue.tenant AND j.key = tidewheel_enqueue.key AND j.deleted_at IS NULL;
    -- Null without such a job, and for a tenant that is being deleted: it has jobs for a while, but no row in tenants.
    IF v_job.most IS NULL THEN
        SELECT d.free_at INTO v_free_at
          FROM tenant_deletions AS d
         WHERE d.tenant = tidewheel_enqueue.tenant AND (d.free_at IS NULL OR d.free_at > tidewheel_now());
        IF FOUND AND v_free_at IS NULL THEN
            RAISE EXCEPTION 'tenant: the tenant % is being deleted', quote_literal(tenant)
                USING ERRCODE = 'undefined_object',
                      HINT = format('name another tenant; `tidewheel tenant show %s` has the progress', tenant);
        ELSIF FOUND THEN
            RAISE EXCEPTION 'tenant: the tenant % was deleted, and its name is reserved until %',
                            quote_literal(tenant), to_char(v_free_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI"Z"')
                USING ERRCODE = 'undefined_object', HINT = 'name another tenant, or create this one again after that time';
        END IF;
        RAISE EXCEPTION 'key: tenant % has no job %', quote_literal(tenant), quote_literal(key)
            USING ERRCODE = 'no_data_found', HINT = 'submit the job first, or correct the key';
    END IF;
    -- Intake counts the bytes of JSON without blanks between its tokens.
    IF octet_length(payload::text) > v_job.most THEN
        v_text := regexp_replace(payload::text, '"(?:[^"\\]|\\.)*"', '', 'g');
        v_bytes := octet_length(payload::text) - (length(v_text) - length(replace(v_text, ' ', '')));
        IF v_bytes > v_job.most THEN
            RAISE EXCEPTION 'payload: it has % bytes, more than the % that tenant % may send', v_bytes, v_job.most, quote_literal(tenant)
                USING ERRCODE = 'program_limit_exceeded',
                      HINT = 'pass a reference to the data, or raise the limit by `tidewheel tenant limits NAME --payload`';
        END IF;
    END IF;
    -- As intake/trigger.py and tidewheel/jobs/dedupe.py: a trigger that these would refuse must not be committed.
    IF ordering_key IS NOT NULL AND (concurrency_key IS NOT NULL OR v_job.concurrency_key IS NOT NULL)
       OR v_job.ordering_key IS NOT NULL AND concurrency_key IS NOT NULL THEN
        RAISE EXCEPTION 'ordering_key: ordering_key and concurrency_key exclude each other, also those of the job'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'leave one out: ordered runs start one after another';
    END IF;
    IF coalesce(ordering_key, v_job.ordering_key) IS NOT NULL AND coalesce(overlap, v_job.overlap) <> 'allow_all' THEN
        RAISE EXCEPTION 'ordering_key: the overlap of the run is %', coalesce(overlap, v_job.overlap)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'write overlap allow_all in the call or the job';
    END IF;
    v_dedupe := coalesce(v_job.dedupe, '{}') || jsonb_strip_nulls(jsonb_build_object(
        'key', dedupe_key, 'window_us', extract(epoch FROM dedupe_window) * 1000000, 'mode', dedupe_mode));
    v_deduped := coalesce(dedupe_key, dedupe_window::text, dedupe_mode, dedupe_longest::text) IS NOT NULL;
    IF v_deduped AND v_dedupe ->> 'key' IS NULL THEN
        RAISE EXCEPTION 'dedupe_key: neither the call nor the job has one'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give the key that the triggers share';
    END IF;
    IF v_deduped AND v_dedupe ->> 'window_us' IS NULL THEN
        RAISE EXCEPTION 'dedupe_window: neither the call nor the job has one'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give a window such as 10 min';
    END IF;
    IF dedupe_longest IS NOT NULL AND v_dedupe ->> 'mode' IS DISTINCT FROM 'debounce' THEN
        RAISE EXCEPTION 'dedupe_longest: it bounds a debounce'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give the dedupe_mode debounce, or leave it out';
    END IF;
    IF extract(epoch FROM dedupe_longest) * 1000000 < (v_dedupe ->> 'window_us')::numeric THEN
        RAISE EXCEPTION 'dedupe_longest: it is shorter than the window'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give a longer time, or leave it out';
    END IF;
    IF v_dedupe ->> 'key' IS NOT NULL AND v_dedupe ->> 'mode' = 'debounce' AND (delay > interval '0' OR run_at IS NOT NULL) THEN
        RAISE EXCEPTION '%: a debounced run starts after its window', CASE WHEN run_at IS NULL THEN 'delay' ELSE 'run_at' END
            USING ERRCODE = 'invalid_parameter_value', HINT = 'leave it out';
    END IF;
    -- Intake fills in the keys, as tidewheel/jobs/concurrency.py does; a payload without their fields is refused here already.
    FOR v_what, v_key, v_filled IN
        VALUES ('concurrency key', coalesce(concurrency_key, CASE WHEN v_job.ordering_key IS NULL THEN v_job.key_template END),
                concurrency_key IS NOT NULL OR v_job.concurrency_key <> v_job.key_template),
               ('ordering key', coalesce(ordering_key, CASE WHEN v_job.ordering_key IS NOT NULL THEN v_job.key_template END),
                ordering_key IS NOT NULL OR v_job.ordering_key <> v_job.key_template),
               ('dedupe key', v_dedupe ->> 'key', true)
    LOOP
        IF payload IS NULL AND NOT v_filled THEN
            RAISE EXCEPTION 'payload: the % % needs a field of it', v_what, v_key
                USING ERRCODE = 'invalid_parameter_value', HINT = 'give a payload that has it as a string or an integer';
        END IF;
        CONTINUE WHEN payload IS NULL OR v_key IS NULL OR strpos(v_key, '{') = 0;
        v_parts := regexp_split_to_array(v_key, '\{payload\.[^{}]+\}');
        v_text := v_parts[1];
        FOR v_field IN SELECT m.parts[1] FROM regexp_matches(v_key, '\{payload\.([^{}]+)\}', 'g') AS m (parts) LOOP
            v_value := payload;
            FOREACH v_name IN ARRAY string_to_array(v_field, '.') LOOP
                v_value := CASE WHEN jsonb_typeof(v_value) = 'object' THEN v_value -> v_name END;
            END LOOP;
            IF NOT coalesce(jsonb_typeof(v_value) = 'string' OR v_value::text ~ '^-?[0-9]+$', false) THEN
                RAISE EXCEPTION 'payload.%: the % % needs this field as a string or an integer', v_field, v_what, v_key
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'add it to the payload, or give another ' || replace(v_what, ' ', '_');
            END IF;
            v_parts := v_parts[2:];
            v_text := v_text || (v_value #>> '{}') || v_parts[1];
        END LOOP;
        IF length(v_text) NOT BETWEEN 1 AND 255 OR v_text ~ v_no_key THEN
            RAISE EXCEPTION 'payload: the % % becomes one of % characters, or with some that no key may have',
                            v_what, v_key, length(v_text)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'send values with which it has 1 to 255 printable characters without spaces at the ends';
        END IF;
    END LOOP;
    SELECT s.value #>> '{}' INTO v_prefix FROM settings AS s WHERE s.name = 'topic_prefix';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no service has named this installation''s topics yet'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'start a Tidewheel service on this database once';
    END IF;
    SELECT (s.value #>> '{}')::integer INTO STRICT v_shards FROM settings AS s WHERE s.name = 'shards';

    v_request := jsonb_build_object('type', 'job.trigger', 'request_id', request_id, 'tenant', tenant, 'key', key)
        || CASE WHEN payload IS NULL THEN '{}' ELSE jsonb_build_object('payload', payload) END
        || CASE WHEN labels IS NULL THEN '{}' ELSE jsonb_build_object('labels', labels) END
        || CASE WHEN concurrency_key IS NULL THEN '{}' ELSE jsonb_build_object('concurrency_key', concurrency_key) END
        || CASE WHEN priority IS NULL THEN '{}' ELSE jsonb_build_object('priority', priority) END
        || CASE WHEN overlap IS NULL THEN '{}' ELSE jsonb_build_object('overlap', overlap) END
        || CASE WHEN ordering_key IS NULL THEN '{}' ELSE jsonb_build_object('ordering_key', jsonb_build_object(
               'key', ordering_key, 'on_failure', coalesce(on_failure, 'block'))) END
        || CASE WHEN NOT v_deduped THEN '{}' ELSE jsonb_build_object('dedupe', jsonb_strip_nulls(jsonb_build_object(
               'key', dedupe_key, 'window', extract(epoch FROM dedupe_window), 'mode', dedupe_mode,
               'longest', extract(epoch FROM dedupe_longest)))) END
        || CASE WHEN delay IS NULL THEN '{}' ELSE jsonb_build_object('delay', extract(epoch FROM delay)) END
        || CASE WHEN run_at IS NULL THEN '{}' ELSE jsonb_build_object('run_at', to_char(run_at AT TIME ZONE 'UTC',
                                                                      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END;
    -- 8 slices of shards, and the lanes' positions, as in tidewheel/outbox.py.
    INSERT INTO outbox (slice_lane, publish_at, topic, key, value)
    VALUES ((array_position(ARRAY['critical', 'standard', 'batch'], v_job.lane) - 1) * 8 + v_job.shard * 8 / v_shards, tidewheel_now(), v_prefix || '.requests', convert_to(key, 'UTF8'),
            convert_to(v_request::text, 'UTF8'));
    RETURN request_id;
END
$$;
COMMENT ON FUNCTION tidewheel_enqueue IS 'triggers a run in the caller''s own transaction; returns the request_id';

-- Requests the cancellation of a run in the caller's own transaction, from any language; returns the run's state. The row
-- commits or rolls back with the caller's rows, and locks no run: the scheduler applies it within about a second.
CREATE FUNCTION tidewheel_cancel(
    run_id uuid,
    tenant text DEFAULT 'default',
    reason text DEFAULT NULL
) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_variable
DECLARE
    v_state    text;
    v_finished timestamptz;
BEGIN
    tenant := coalesce(tenant, 'default');
    IF length(reason) > 1000 OR reason ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f]' THEN
        RAISE EXCEPTION 'reason: it has % characters, or some that cannot be shown', length(reason)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give at most 1000 printable characters, or leave it out';
    END IF;
    SELECT r.state, r.finished_at INTO v_state, v_finished
      FROM runs AS r
     WHERE r.run_id = tidewheel_cancel.run_id AND r.tenant = tidewheel_cancel.tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run_id: tenant % has no run %', quote_literal(tenant), run_id
            USING ERRCODE = 'no_data_found', HINT = 'correct the id; runs are kept for the period of retention';
    END IF;
    IF v_finished IS NULL AND v_state <> 'cancelling'
       AND NOT EXISTS (SELECT FROM pending_cancels AS p WHERE p.run_id = tidewheel_cancel.run_id) THEN
        INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (run_id, tenant, coalesce(reason, 'requested'));
        INSERT INTO audit_log (tenant, door, actor_kind, actor, action, object)
        VALUES (tenant, 'client', 'role', session_user, 'run.cancel', 'run/' || run_id);
    END IF;
    RETURN v_state;
END
$$;
COMMENT ON FUNCTION tidewheel_cancel IS 'cancels a run in the caller''s own transaction; returns the state that it found';

-- The state of a run as the caller's own transaction sees it; no row if the tenant has no such run.
CREATE FUNCTION tidewheel_status(
    run_id uuid,
    tenant text DEFAULT 'default'
) RETURNS TABLE (
    job_id        uuid,
    state         text,
    attempt       integer,
    scheduled_at  timestamptz,
    started_at    timestamptz,
    finished_at   timestamptz,
    reason        text,
    error_type    text,
    error_message text,
    result        bytea,
    progress      bytea,
    progress_at   timestamptz,
    deadline_at   timestamptz
)
    LANGUAGE sql STABLE SECURITY DEFINER
AS $$
SELECT r.job_id, r.state, r.attempt, r.scheduled_at, r.started_at, r.finished_at, r.reason,
       coalesce(r.error_type, a.error_type), a.error_message, x.result, i.progress, i.progress_at, r.deadline_at
  FROM runs AS r
  LEFT JOIN attempts AS a ON r.finished_at IS NOT NULL AND a.run_id = r.run_id AND a.attempt = r.attempt
  LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
 WHERE r.run_id = tidewheel_status.run_id AND r.tenant = tidewheel_status.tenant
$$;
COMMENT ON FUNCTION tidewheel_status IS 'a run as the caller''s own transaction sees it';

-- They run with their owner's rights, so that an application needs only the right to call them, which must be granted.
-- Names in them are looked up in the schema of these tables, and never in temporary tables that a caller may have created.
REVOKE ALL ON FUNCTION tidewheel_enqueue, tidewheel_cancel, tidewheel_status FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION tidewheel_enqueue SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION tidewheel_cancel SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION tidewheel_status SET search_path = %I, pg_temp', current_schema());
END
$$;

-- Creates and attaches the partition of a table for a day, if there is none. Only the owner of its parent attaches a partition, and
-- services own none. The advisory lock lets one transaction at a time create partitions. The table of a user is never touched.
-- A role that is no member of the owner creates days near today, and days that rows of an open run still go to.
CREATE FUNCTION tidewheel_create_day(day_table text, day date) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    v_name   CONSTANT text := day_table || to_char(day, '_YYYYMMDD');
    v_unique CONSTANT text := CASE day_table WHEN 'finished_runs' THEN 'run_id' END; -- within a day, though it is not the partition key
    v_begin  CONSTANT timestamptz := day::timestamp AT TIME ZONE 'UTC';
    v_today  CONSTANT date := (tidewheel_now() AT TIME ZONE 'UTC')::date;
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
    PERFORM pg_advisory_xact_lock(hashtext('tidewheel.postgres.partitions'));
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
    IF EXISTS (SELECT FROM settings WHERE name = 'service_roles')
       AND EXISTS (SELECT FROM pg_roles WHERE rolname = 'tidewheel_scheduler') THEN
        EXECUTE format('GRANT SELECT, DELETE ON %I TO tidewheel_scheduler', v_name); -- it removes rows of deleted tenants
    END IF;
END
$$;

-- Detaches and drops the partition of a day that is over, for services that do not own the table. PostgreSQL refuses DETACH
-- CONCURRENTLY in a function. So statements on the parent wait, for 100 ms at most, and the caller tries again.
CREATE FUNCTION tidewheel_drop_day(day_table text, day date) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET lock_timeout = '100ms'
AS $$
DECLARE
    v_name CONSTANT text := day_table || to_char(day, '_YYYYMMDD');
BEGIN
    IF day_table <> ALL (ARRAY['finished_runs', 'run_inputs', 'attempts', 'attempt_outputs']) THEN
        RAISE EXCEPTION '% has no days', day_table USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF day >= (tidewheel_now() AT TIME ZONE 'UTC')::date THEN
        RAISE EXCEPTION 'the day % is not over', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = to_regclass(quote_ident(v_name)) AND i.inhdetachpending) THEN
        EXECUTE format('ALTER TABLE %I DETACH PARTITION %I FINALIZE', day_table, v_name);
    ELSIF EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = to_regclass(quote_ident(v_name))) THEN
        EXECUTE format('ALTER TABLE %I DETACH PARTITION %I', day_table, v_name);
    END IF;
    EXECUTE format('DROP TABLE %I', v_name);
END
$$;

REVOKE ALL ON FUNCTION tidewheel_create_day, tidewheel_drop_day FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION tidewheel_create_day SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION tidewheel_drop_day SET search_path = %I, pg_temp', current_schema());
END
$$;
