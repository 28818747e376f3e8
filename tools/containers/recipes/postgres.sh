#!/bin/sh
# Make the data at the first start, then become the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    install -d -m 700 "$PGDATA"
    # shellcheck disable=SC2086 # several arguments
    initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --auth-local=trust $POSTGRES_INITDB_ARGS
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -o "-c listen_addresses=''" -w start
    docker_process_sql() { psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d postgres; }
    for script in /docker-entrypoint-initdb.d/*.sh; do
        [ ! -e "$script" ] || . "$script"
    done
    createdb -U "$POSTGRES_USER" --maintenance-db=postgres "$POSTGRES_DB"
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
shift
exec postgres -D "$PGDATA" -c listen_addresses='*' "$@"
