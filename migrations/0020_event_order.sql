-- Gives the events of the caller's transaction the present time, so that they leave in their order. A relay that has read past the
-- clock readings of a long transaction would find its events late, behind those of the next change of the same jobs.
-- PUBLIC may call it, for it changes only rows that the calling transaction has written. All events are written outside
-- savepoints, so the id of the transaction marks them.
-- Why now(): it is the begin of the transaction. Databases made for tests add an offset to tidewheel_now().
CREATE FUNCTION tidewheel_restamp_events() RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
UPDATE outbox AS o
   SET publish_at = tidewheel_now()
 WHERE o.slice_lane >= 24
   AND o.publish_at BETWEEN tidewheel_now() - (clock_timestamp() - now()) - interval '1 s' AND tidewheel_now()
   AND o.xmin = pg_current_xact_id()::xid
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION tidewheel_restamp_events SET search_path = %I, pg_temp', current_schema());
END
$$;
