-- part: columns_of(w)
-- The columns of works, with their job by key.
w.work_id, w.kind, w.state, jsonb_strip_nulls(w.filter || jsonb_build_object('job', j.key)) AS filter, w.rate, w.matched_count,
       w.done_count, w.rejected_count, w.rejections, w.reason, w.created_at, w.finished_at, w.facts

-- part: from_works(w)
-- The columns of works in the table works; a damaged id names no job.
w.work_id, w.kind, w.state, w.filter, w.rate, w.matched_count, w.done_count, w.rejected_count, w.rejections, w.reason,
               w.created_at, w.finished_at, '{}'::jsonb AS facts, CASE WHEN w.filter ->> 'job_id' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN (w.filter ->> 'job_id')::uuid END AS job_id

-- part: from_backfills(b)
-- The columns of a backfill as a work: it has a table of its own.
b.backfill_id, 'backfill', b.state,
               replace(jsonb_build_object('job_id', b.job_id, 'from', b.first_at, 'to', b.last_at, 'what', b.what,
                   'versions', b.versions, 'job_version', b.job_version, 'overlap', b.overlap, 'max_concurrent', b.max_concurrent,
                   'order', CASE WHEN b.newest_first THEN 'newest_first' ELSE 'oldest_first' END)::text, '+00:00"', 'Z"')::jsonb,
               NULL, b.occurrences, b.created_count + b.existing_count, 0, '[]', b.reason, b.created_at, b.finished_at,
               replace(jsonb_strip_nulls(jsonb_build_object('needed', b.expected_count, 'created', b.created_count,
                   'next_at', b.cursor_at, 'ending', b.finished_at IS NULL AND EXISTS (SELECT FROM job_versions AS v
                        WHERE v.job_id = b.job_id AND v.version >= b.job_version AND v.retired_at IS NOT NULL)))::text,
                   '+00:00"', 'Z"')::jsonb, b.job_id

-- name: list_works
-- Returns a page of a tenant's works and backfills, or those of a job or a kind, the newest first.
-- Index: works_by_tenant, backfills_by_tenant or backfills_by_job, from the place of the page; jobs_pkey, job_versions_pkey. No lock.
-- Why a subquery: the policy of jobs comes before a condition that reads JSON, which no index would serve.
SELECT {{columns_of(w)}}
  FROM ((SELECT {{from_works(w)}}
           FROM works AS w
          WHERE w.tenant = %(tenant)s AND (%(job_id)s::uuid IS NULL OR w.filter ->> 'job_id' = %(job_id)s::text)
            AND (%(kind)s::text IS NULL OR w.kind = %(kind)s) AND %(kind)s::text IS DISTINCT FROM 'backfill'
            AND w.created_at <= %(before_at)s AND (w.created_at, w.work_id) < (%(before_at)s, %(before_id)s)
          ORDER BY w.created_at DESC, w.work_id DESC LIMIT %(limit)s)
         UNION ALL
        (SELECT {{from_backfills(b)}}
           FROM backfills AS b
          WHERE b.tenant = %(tenant)s AND (%(job_id)s::uuid IS NULL OR b.job_id = %(job_id)s)
            AND (%(kind)s::text IS NULL OR %(kind)s = 'backfill')
            AND b.created_at <= %(before_at)s AND (b.created_at, b.backfill_id) < (%(before_at)s, %(before_id)s)
          ORDER BY b.created_at DESC, b.backfill_id DESC LIMIT %(limit)s)) AS w
  LEFT JOIN jobs AS j USING (job_id)
 ORDER BY w.created_at DESC, w.work_id DESC
 LIMIT %(limit)s

-- name: show_work
-- Returns one work or backfill.
-- Index: works_pkey, backfills_pkey, jobs_pkey, job_versions_pkey. No lock.
-- Why OFFSET 0: as in list_works.
SELECT {{columns_of(w)}}
  FROM ((SELECT {{from_works(w)}}
           FROM works AS w WHERE w.work_id = %(work_id)s AND w.tenant = %(tenant)s OFFSET 0)
         UNION ALL
        (SELECT {{from_backfills(b)}}
           FROM backfills AS b WHERE b.backfill_id = %(work_id)s AND b.tenant = %(tenant)s)) AS w
  LEFT JOIN jobs AS j USING (job_id)

-- name: count_backfilled
-- Returns the number of a backfill's runs in each state.
-- Index: job_runs_pkey and the partitions' index by run: the ids of a backfill's runs are one range. No lock.
SELECT r.state, count(*) AS runs
  FROM runs AS r
 WHERE r.run_id BETWEEN %(first_run_id)s AND %(last_run_id)s AND r.job_id = %(job_id)s AND r.cause = 'backfill'
 GROUP BY 1
