-- The tenants for which a database role may call the SQL functions; `*` is all of them. A role without a row acts for `default`, as
-- the roles of 0.1.0 do after the upgrade. The column is not named `tenant`: the rows outlive a deleted tenant, so that no role
-- falls back to `default` by its deletion.
CREATE TABLE tenant_roles (
    role     text NOT NULL,
    acts_for text NOT NULL,
    PRIMARY KEY (acts_for, role)
);

-- Returns the tenant of a call, or refuses it. `session_user` is the login, which neither SET ROLE nor SECURITY DEFINER changes.
-- The owner, superusers and roles that may write the outbox themselves, as those of the services, act for all tenants.
CREATE FUNCTION tidewheel_own_tenant(tenant text) RETURNS text
    LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_variable
BEGIN
    tenant := coalesce(tenant, 'default');
    IF pg_has_role(session_user, current_user, 'MEMBER')
       OR (SELECT coalesce(bool_or(t.acts_for IN (tenant, '*')), tenant = 'default')
             FROM tenant_roles AS t
             JOIN pg_roles AS r ON r.rolname = t.role
            WHERE pg_has_role(session_user, r.oid, 'MEMBER'))
       OR EXISTS (SELECT FROM pg_roles AS r
                   WHERE pg_has_role(session_user, r.oid, 'MEMBER') AND has_table_privilege(r.oid, 'outbox', 'INSERT')) THEN
        RETURN tenant;
    END IF;
    RAISE EXCEPTION 'tenant: the role % may not act for tenant %', quote_ident(session_user), quote_literal(tenant)
        USING ERRCODE = 'insufficient_privilege',
              HINT = format('an operator allows it by `tidewheel tenant limits %s --grant-role %s`', tenant, session_user);
END
$$;
REVOKE ALL ON FUNCTION tidewheel_own_tenant FROM PUBLIC;

-- As in 0005_functions.sql, for a tenant of the caller, and with the message of a timeout between two attempts.
CREATE OR REPLACE FUNCTION tidewheel_status(
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
    LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
#variable_conflict use_column
BEGIN
    tenant := tidewheel_own_tenant(tenant);
    RETURN QUERY
    SELECT r.job_id, r.state, r.attempt, r.scheduled_at, r.started_at, r.finished_at, r.reason,
           r.error_type, coalesce(f.error_message, a.error_message), x.result, i.progress, i.progress_at, r.deadline_at
      FROM runs AS r
      LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.attempt = r.attempt AND a.error_type = r.error_type
      LEFT JOIN failed_runs AS f ON f.run_id = r.run_id
      LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
      LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
     WHERE r.run_id = tidewheel_status.run_id AND r.tenant = tidewheel_status.tenant;
END
$$;

-- The other functions differ from those of 0005_functions.sql in one line each: it takes the tenant of the caller.
DO $$
DECLARE
    v_was CONSTANT text := 'tenant := coalesce(tenant, ''default'');';
    v_function regproc;
BEGIN
    EXECUTE format('ALTER FUNCTION tidewheel_status SET search_path = %I, pg_temp', current_schema());
    FOREACH v_function IN ARRAY ARRAY['tidewheel_enqueue', 'tidewheel_cancel']::regproc[] LOOP
        IF strpos(pg_get_functiondef(v_function), v_was) = 0 THEN
            RAISE EXCEPTION '% is not the function of 0005_functions.sql', v_function;
        END IF;
        EXECUTE replace(pg_get_functiondef(v_function), v_was, 'tenant := tidewheel_own_tenant(tenant);');
    END LOOP;
END
$$;

-- API keys with which executors in other languages claim runs: of the tenant of the key, and of these queues. Such a key has no scope
-- that a process of 0.1.0 could misread. The new check allows all that the old one did.
ALTER TABLE api_keys ADD COLUMN queues text[];
-- squawk-ignore ban-drop-constraint
ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes_check CHECK (
    scopes <@ ARRAY['read', 'write', 'operate', 'admin'] AND (cardinality(scopes) > 0 OR queues IS NOT NULL)) NOT VALID;
COMMENT ON COLUMN api_keys.queues IS 'of a key with the scope execute: the queues of its executors, * for all; else null';
ALTER TABLE executors ADD COLUMN key_id text;
ALTER TABLE executors ADD COLUMN acts_for text;
COMMENT ON COLUMN executors.key_id IS 'the API key that has registered it, whose calls alone may name it';
COMMENT ON COLUMN executors.acts_for IS 'the tenant whose runs alone it starts; null: all';

-- The time of grace of a deletion: until then the tenant is as before.
ALTER TABLE tenants ADD COLUMN delete_at timestamptz;
COMMENT ON COLUMN tenants.delete_at IS 'the time at which a scheduler deletes the tenant; null: it stays';
-- The table has one small row for each tenant, so the index is made within milliseconds.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX tenants_to_delete ON tenants (delete_at) WHERE delete_at IS NOT NULL;
