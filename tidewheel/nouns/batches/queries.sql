-- part: batch_summary(b)
-- The columns of a batch, from b and its occurrence w; an open batch is no run.
b.batch_id, w.state, b.open AS accepts_runs, w.generation, b.total, w.pending - b.open::integer AS pending, b.succeeded, w.failed,
       w.cancelled, b.first_failed_run_id, w.reason, w.created_at, w.finished_at

-- name: list_batches
-- Returns a page of a tenant's batches, the newest first.
-- Index: batches_by_tenant, from its end; workflows_pkey. No lock.
SELECT {{batch_summary(b)}}
  FROM batches AS b
  JOIN workflows AS w ON w.root_run_id = b.batch_id
 WHERE b.tenant = %(tenant)s AND b.batch_id < %(before)s
 ORDER BY b.batch_id DESC
 LIMIT %(limit)s

-- name: show_batch
-- Returns one batch.
-- Index: batches_pkey, workflows_pkey. No lock.
SELECT {{batch_summary(b)}}
  FROM batches AS b
  JOIN workflows AS w ON w.root_run_id = b.batch_id
 WHERE b.batch_id = %(batch_id)s AND b.tenant = %(tenant)s

-- name: read_batch_runs
-- Returns the runs of a batch with the keys of their jobs, in the order of their refs, behind one.
-- Index: batch_runs_pkey, jobs_pkey. No lock.
SELECT r.ref, r.run_id, j.key
  FROM batch_runs AS r
  JOIN jobs AS j ON j.job_id = r.job_id
 WHERE r.batch_id = %(batch_id)s AND r.ref > %(after)s
 ORDER BY r.ref
 LIMIT %(limit)s

-- name: list_failed_runs
-- Returns the failed runs among `look` runs of a batch with their errors, in the order of their refs, behind one.
-- Index: batch_runs_pkey, failed_runs_pkey, jobs_pkey. No lock.
SELECT r.ref, r.run_id, j.key, f.state, f.attempt, f.started_at, f.finished_at, f.error_type,
       left(split_part(f.error_message, E'\n', 1), 300) AS message
  FROM (SELECT b.ref, b.run_id FROM batch_runs AS b
         WHERE b.batch_id = %(batch_id)s AND b.ref > %(after)s
         ORDER BY b.ref
         LIMIT %(look)s) AS r
  JOIN failed_runs AS f ON f.run_id = r.run_id
  JOIN jobs AS j ON j.job_id = f.job_id
 ORDER BY r.ref
 LIMIT %(limit)s

-- name: find_runs_of_batches
-- Returns those of the given runs that belong to batches.
-- Index: the primary keys of open runs and of the partitions, workflows_pkey. No lock.
SELECT r.run_id
  FROM runs AS r
  JOIN workflows AS w ON w.root_run_id = r.workflow_run_id AND w.root_job_id = '00000000-0000-0000-0000-000000000000'
 WHERE r.run_id = ANY (%(run_ids)s)

-- name: read_batch_callbacks
-- Returns the callbacks of a batch.
-- Index: batches_pkey. No lock.
SELECT callbacks FROM batches WHERE batch_id = %(batch_id)s

-- name: read_run_edges
-- Returns the edges that leave some runs of a batch.
-- Index: run_edges_pkey. No lock.
SELECT parent_run_id, child_run_id, condition
  FROM run_edges
 WHERE batch_id = %(batch_id)s AND parent_run_id = ANY (%(run_ids)s::uuid[])
 ORDER BY parent_run_id, child_run_id
