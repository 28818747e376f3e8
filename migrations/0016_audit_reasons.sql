-- The reason of a change, which the audit log left out. A service of 0.1.0 writes none.
ALTER TABLE audit_log ADD COLUMN reason text;
COMMENT ON COLUMN audit_log.reason IS 'the reason that the request gives; of entries that count repeats, that of the first';
