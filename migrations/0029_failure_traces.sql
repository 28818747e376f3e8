-- The end of the trace of a failed run's last attempt. Its place for output is dropped sooner. A service of an earlier build leaves it
-- out, and shows the trace for as long as the output is kept.
ALTER TABLE failed_runs ADD COLUMN trace text;
COMMENT ON COLUMN failed_runs.trace IS 'the last 8 Ki characters of the trace of its last attempt; null without one';
