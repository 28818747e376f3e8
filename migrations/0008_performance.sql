-- What measuring has shown (docs/performance.md).

-- Checked by intake for each request, and written beside its job by nothing else: two look-ups with a row lock for each
-- new job were half of what PostgreSQL spent on it. Whoever removes a job for good removes its versions too.
ALTER TABLE jobs DROP CONSTRAINT jobs_tenant_fkey;
ALTER TABLE job_versions DROP CONSTRAINT job_versions_job_id_fkey;

-- A claim grows the row: with room for one more of each, it stays on its page and touches no index.
ALTER TABLE open_runs SET (fillfactor = 40);
