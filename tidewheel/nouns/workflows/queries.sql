-- name: find_workflows
-- Returns the first matching roots among the newest `look` occurrences of a tenant, as find_runs does.
-- Index: workflows_by_tenant, walked backwards. No lock.
WITH seen AS MATERIALIZED (
    SELECT w.root_run_id AS run_id, %(state)s::text IS NULL OR w.state = %(state)s AS matches
      FROM workflows AS w
     WHERE (w.tenant, w.root_run_id) < (%(tenant)s, %(before_id)s) AND w.tenant >= %(tenant)s
       AND w.root_job_id <> '00000000-0000-0000-0000-000000000000'
     ORDER BY w.tenant DESC, w.root_run_id DESC
     LIMIT %(look)s
)
{{tidewheel.control.page_by_id(seen)}}

-- name: find_workflows_of_root
-- Returns the same of the newest `look` occurrences of one root by instant.
-- Index: workflows_by_job, walked backwards. No lock.
WITH seen AS MATERIALIZED (
    SELECT w.root_run_id AS run_id, w.scheduled_at, %(state)s::text IS NULL OR w.state = %(state)s AS matches
      FROM workflows AS w
     WHERE w.root_job_id = %(job_id)s AND w.scheduled_at <= %(before_at)s
       AND (w.scheduled_at, w.root_run_id) < (%(before_at)s, %(before_id)s)
     ORDER BY w.scheduled_at DESC, w.root_run_id DESC
     LIMIT %(look)s
)
{{tidewheel.control.page_by_instant(seen)}}

-- name: read_workflows
-- Returns occurrences of workflows.
-- Index: workflows_pkey, jobs_pkey. No lock.
SELECT w.root_run_id, j.key, w.state, w.scheduled_at, w.generation, w.pending, w.failed, w.reason, w.created_at, w.finished_at
  FROM workflows AS w
  JOIN jobs AS j ON j.job_id = w.root_job_id
 WHERE w.root_run_id = ANY (%(root_run_ids)s::uuid[]) AND w.tenant = %(tenant)s

-- name: read_node_keys
-- Returns the keys of the jobs of a graph.
-- Index: jobs_pkey. No lock.
SELECT job_id, key FROM jobs WHERE job_id = ANY (%(job_ids)s::uuid[])

-- name: read_graphs
-- Returns the root, the instant of the graph and the jobs of these occurrences, of each up to `look` jobs.
-- Index: workflows_pkey, job_edges_pkey. No lock.
SELECT w.root_run_id, w.root_job_id, w.graph_at, g.jobs
  FROM workflows AS w
 CROSS JOIN LATERAL (
    WITH RECURSIVE below (job_id) AS (
        SELECT w.root_job_id
         UNION
        SELECT e.child_job_id
          FROM below AS b
          JOIN job_edges AS e ON e.parent_job_id = b.job_id AND e.from_at < w.graph_at AND (e.until_at IS NULL OR w.graph_at <= e.until_at)
    )
    SELECT array_agg(s.job_id) AS jobs FROM (SELECT job_id FROM below LIMIT %(look)s) AS s
 ) AS g
 WHERE w.root_run_id = ANY (%(root_run_ids)s::uuid[])
