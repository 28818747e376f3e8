-- The work of each step by its usual path and by its fall-back, for `tidewheel doctor`. A service of 0.1.0 writes none.
ALTER TABLE processes ADD COLUMN fallbacks jsonb;
COMMENT ON COLUMN processes.fallbacks IS 'of the last minute: lists of a step, its queue, the work by the usual path, the work by the fall-back';
