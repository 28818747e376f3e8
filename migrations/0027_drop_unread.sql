-- outside a transaction
-- squawk-ignore-file ban-drop-function, ban-drop-table
-- Removes the table of 0010_history_limits.sql, what 0009_standby.sql has created, and the triggers that
-- `tidewheel admin standby enable` of that time has left (docs/adr/0082-standby-site.md). No release has had these tables, so they
-- need no file `_post`.
-- Each trigger is a transaction of its own: no lock is held while the lock of another table is waited for.
SET lock_timeout = '200ms';
DO $$
DECLARE made record; BEGIN
    FOR made IN SELECT g.tgname, g.tgrelid::regclass AS of_table FROM pg_trigger AS g WHERE g.tgfoid = to_regproc('tidewheel_note_change') LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', made.tgname, made.of_table); COMMIT; END LOOP; END
$$;
DROP FUNCTION IF EXISTS tidewheel_note_change;
DROP TABLE IF EXISTS history_limits, standby, standby_changes, standby_records, standby_rows;
