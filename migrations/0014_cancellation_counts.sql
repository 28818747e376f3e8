-- The runs that a cancellation by filter named when it was accepted, so that its progress has a whole, and an index for the list of a
-- tenant's cancellations. A service of 0.1.0 leaves the number out.
ALTER TABLE cancellations ADD COLUMN named_count bigint;
COMMENT ON COLUMN cancellations.named_count IS 'the number of matching runs at the acceptance; 250,001 means that there may be more';
-- The table has one row for each order of an operator, so the index is made within milliseconds.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX cancellations_by_tenant ON cancellations (tenant, id);
