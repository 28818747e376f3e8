-- part: letter_of_page(letter)
-- True if a page looks at the letter: behind its cursor, and within the filters that an index serves.
letter.tenant = %(tenant)s AND (letter.created_at, letter.id) < (%(before_at)s, %(before_id)s)
           AND letter.created_at BETWEEN %(since)s AND %(until)s
           AND (%(ids)s::bigint[] IS NULL OR letter.id = ANY (%(ids)s))
           AND (%(job_id)s::uuid IS NULL OR letter.job_id = %(job_id)s)

-- name: list_dead_letters
-- Returns a page of a tenant's dead letters among the next `look`, the newest first.
-- Index: dead_letters_by_tenant, walked backwards; dead_letters_by_job if a job is given; failed_runs_pkey, jobs_pkey. No lock.
-- Why: the other filters have no index, and a filter that few fit would read all.
SELECT d.id, d.kind, d.run_id, j.key, d.job_id, f.state AS status, f.cause, f.queue, f.lane, f.attempt, f.error_type, d.topic,
       d.partition, d."offset", d.reason, d.created_at, d.redriven_run_id, d.redriven_at
  FROM (SELECT id, kind, run_id, job_id, topic, partition, "offset", reason, created_at, redriven_run_id, redriven_at
          FROM dead_letters AS l
         WHERE {{letter_of_page(l)}}
         ORDER BY created_at DESC, id DESC
         LIMIT %(look)s) AS d
  LEFT JOIN failed_runs AS f ON f.run_id = d.run_id
  LEFT JOIN jobs AS j ON j.job_id = d.job_id
 WHERE {{tidewheel.transitions.fits_letter_filter(d)}}
 ORDER BY d.created_at DESC, d.id DESC
 LIMIT %(limit)s

-- name: count_dead_letters
-- Returns how many of a tenant's newest `look` dead letters fit, and their number.
-- Index: as list_dead_letters. No lock.
SELECT count(*) FILTER (WHERE
       {{tidewheel.transitions.fits_letter_filter(d)}}), count(*)
  FROM (SELECT kind, run_id, redriven_at
          FROM dead_letters AS l
         WHERE {{letter_of_page(l)}}
         ORDER BY created_at DESC, id DESC
         LIMIT %(look)s) AS d
  LEFT JOIN failed_runs AS f ON f.run_id = d.run_id

-- name: last_dead_letter_looked_at
-- Returns the place of the last dead letter that a page has looked at, if there are so many.
-- Index: dead_letters_by_tenant, walked backwards; dead_letters_by_job if a job is given. No lock.
SELECT created_at, id
  FROM dead_letters AS l
 WHERE {{letter_of_page(l)}}
 ORDER BY created_at DESC, id DESC
OFFSET %(look)s - 1
 LIMIT 1

-- name: read_dead_letter
-- Returns the key and value of a dead message.
-- Index: dead_letters_pkey. No lock.
SELECT "key", value FROM dead_letters WHERE id = %(id)s AND tenant = %(tenant)s

-- name: group_dead_letters
-- Groups a tenant's newest dead letters by cause, the largest group first, and returns with each the number that was looked at.
-- Index: dead_letters_by_tenant, walked backwards; failed_runs_pkey, jobs_pkey; dead_letters_pkey for the reasons. No lock.
-- Why: a plain join of 10,000 dead letters reads each of the two tables whole.
WITH newest AS MATERIALIZED (
    SELECT id, kind, run_id, job_id, created_at, redriven_at
      FROM dead_letters
     WHERE tenant = %(tenant)s AND created_at >= %(since)s
     ORDER BY created_at DESC, id DESC
     LIMIT %(look)s
)
SELECT g.kind, j.key, g.job_id, g.error_type, g.status, g.count, g.first_at, g.last_at, g.versions,
       CASE WHEN j.deleted_at IS NULL THEN j.version END AS current_version,
       (SELECT reason FROM dead_letters WHERE id = g.newest_id) AS reason, (SELECT count(*) FROM newest) AS looked_at
  FROM (SELECT n.kind, n.job_id, f.error_type, f.state AS status, count(*) AS count, min(n.created_at) AS first_at,
               max(n.created_at) AS last_at, max(n.id) AS newest_id, coalesce(array_agg(DISTINCT f.job_version) FILTER (WHERE f.job_version IS NOT NULL), '{}') AS versions
          FROM newest AS n
          LEFT JOIN LATERAL (SELECT error_type, state, job_version FROM failed_runs WHERE run_id = n.run_id OFFSET 0) AS f ON TRUE
         WHERE %(redriven)s::boolean IS NULL OR (n.redriven_at IS NOT NULL) = %(redriven)s
         GROUP BY n.kind, n.job_id, f.error_type, f.state
         ORDER BY count DESC, last_at DESC, n.job_id
         LIMIT %(limit)s) AS g
  LEFT JOIN LATERAL (SELECT key, version, deleted_at FROM jobs WHERE job_id = g.job_id OFFSET 0) AS j ON TRUE
 ORDER BY g.count DESC, g.last_at DESC, g.job_id
