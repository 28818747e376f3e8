-- part: columns_of(w)
-- The columns of works, with their job by key.
w.work_id, w.kind, w.state, jsonb_strip_nulls(w.filter || jsonb_build_object('job', j.key)) AS filter, w.rate, w.matched_count,
       w.done_count, w.rejected_count, w.rejections, w.reason, w.created_at, w.finished_at

-- name: list_works
-- Returns a tenant's works, the newest first.
-- Index: works_by_tenant, from its end; jobs_pkey. No lock.
-- Why a subquery: the policy of jobs comes before a condition that reads JSON, which no index would serve.
SELECT {{columns_of(w)}}
  FROM (SELECT *, (filter ->> 'job_id')::uuid AS job_id FROM works
         WHERE tenant = %(tenant)s ORDER BY created_at DESC LIMIT %(limit)s) AS w
  LEFT JOIN jobs AS j USING (job_id)
 ORDER BY w.created_at DESC

-- name: show_work
-- Returns one work.
-- Index: works_pkey, jobs_pkey. No lock.
-- Why OFFSET 0: as in list_works.
SELECT {{columns_of(w)}}
  FROM (SELECT *, (filter ->> 'job_id')::uuid AS job_id FROM works
         WHERE work_id = %(work_id)s AND tenant = %(tenant)s OFFSET 0) AS w
  LEFT JOIN jobs AS j USING (job_id)
