-- The zone of cron schedules that name none, for a tenant's submits. Stored jobs have theirs written out, so firing does not read it. A
-- service of an earlier build leaves it out: it applies such submits in UTC.
ALTER TABLE tenants ADD COLUMN timezone text;
COMMENT ON COLUMN tenants.timezone IS 'IANA zone that a submitted cron schedule without a zone gets; null: UTC';
