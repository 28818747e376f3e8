-- A standby site: which rows have changed and are not yet in the topics from which another installation is raised
-- (docs/adr/0082-standby-site.md). Nothing here is read or written until `tidewheel standby enable` creates the triggers.

CREATE TABLE standby (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    site         uuid NOT NULL DEFAULT gen_random_uuid(),
    enabled_at   timestamptz,
    listed       boolean NOT NULL DEFAULT false,
    first_batch  bigint NOT NULL DEFAULT 1,
    batch        bigint NOT NULL DEFAULT 0,
    sent_at      timestamptz,
    mark_due     boolean NOT NULL DEFAULT false,
    complete_at  timestamptz,
    raised_site  uuid,
    raised_batch bigint,
    raised_as_of timestamptz,
    raised_at    timestamptz
);
COMMENT ON TABLE standby IS 'one row, from the first `tidewheel standby enable` or `raise` on';
COMMENT ON COLUMN standby.site IS 'the installation in its records; a reader takes those of one site';
COMMENT ON COLUMN standby.enabled_at IS 'null while no row is recorded';
COMMENT ON COLUMN standby.listed IS 'true once every row that existed before is in standby_changes; false again if Kafka has refused a record';
COMMENT ON COLUMN standby.first_batch IS 'the first batch since enabled_at: records of earlier ones are void';
COMMENT ON COLUMN standby.sent_at IS 'publish_at of the last batch: the next one is written once it has left the outbox';
COMMENT ON COLUMN standby.mark_due IS 'true from a batch that took every change until its records are published and its mark is written';
COMMENT ON COLUMN standby.complete_at IS 'the snapshot of the last mark: all rows as of then are in the topics';
COMMENT ON COLUMN standby.raised_site IS 'the site from whose topics this installation was raised, as of raised_batch';

CREATE TABLE standby_changes (
    kind text NOT NULL,
    key  text NOT NULL,
    op   text,
    xact xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE standby_changes IS 'a row for each change of a row that is carried; kind is its table, key its primary key as JSON';
COMMENT ON COLUMN standby_changes.op IS 'INSERT, UPDATE or DELETE; null for a row that existed before';
COMMENT ON COLUMN standby_changes.xact IS 'its transaction: a batch reads on from the oldest one that was under way at the batch before';
CREATE INDEX standby_changes_by_xact ON standby_changes (xact);

-- A raise copies both topics here, and takes the last record of each row. Both tables are empty before and after it.
CREATE TABLE standby_records (
    site      uuid NOT NULL,
    batch     bigint NOT NULL,
    kind      text NOT NULL,
    key       text NOT NULL,
    "row"     jsonb,
    copied_at timestamptz
);
CREATE TABLE standby_rows (
    kind  text NOT NULL,
    "row" jsonb NOT NULL
);

-- Notes the changed rows of a statement. The arguments of the trigger are the columns of the primary key.
-- Why the zone: an instant in a key has one text, whichever session writes it.
CREATE FUNCTION tidewheel_note_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET timezone = 'UTC'
AS $$
BEGIN
    EXECUTE format(
        'INSERT INTO standby_changes (kind, key, op) SELECT %L, jsonb_build_object(%s)::text, %L FROM changed',
        TG_TABLE_NAME,
        (SELECT string_agg(format('%L, %I', name, name), ', ') FROM unnest(TG_ARGV) AS name),
        TG_OP);
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION tidewheel_note_change FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION tidewheel_note_change SET search_path = %I, pg_temp', current_schema());
END
$$;
