-- Hints of SQL functions and comments name the commands of 0.2.0. What the functions do stays.
DO $$
DECLARE
    function_id oid;
BEGIN
    FOR function_id IN
        SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND prosrc LIKE '%`tidewheel tenant %'
    LOOP
        EXECUTE replace(pg_get_functiondef(function_id), '`tidewheel tenant ', '`tidewheel admin tenant ');
    END LOOP;
END
$$;
COMMENT ON COLUMN tenant_deletions.left_archive IS 'true once `tidewheel admin archive run` has removed its rows from the archive';
COMMENT ON TABLE message_keys IS 'keys of the signatures of run messages; `tidewheel admin secrets rotate run-messages` adds one';
COMMENT ON TABLE task_token_keys IS 'keys of the signatures of task tokens; `tidewheel admin secrets rotate task-tokens` adds one';
COMMENT ON TABLE standby IS 'one row, from the first `tidewheel admin standby enable` or `raise` on';
