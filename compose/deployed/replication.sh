# Once, on the new primary: let the standby connect, and let commits wait for it. The image reads this file after initdb.
# A commit waits from the next start on. Without a limit a lost standby would fill the disk with WAL.
printf 'host replication %s all scram-sha-256\n' "$POSTGRES_USER" >> "$PGDATA/pg_hba.conf"
docker_process_sql <<'SQL'
ALTER SYSTEM SET synchronous_standby_names = '*';
ALTER SYSTEM SET max_slot_wal_keep_size = '8GB';
SQL
