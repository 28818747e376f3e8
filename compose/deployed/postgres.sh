#!/bin/bash
# Start one of two PostgreSQL servers. One makes the data, the other copies them and follows. PEER names the other server
# for libpq, and MAKES_DATA=yes the server that makes the data of a new installation.
set -euo pipefail

PGPASSWORD=$(< "$POSTGRES_PASSWORD_FILE")
export PGPASSWORD
peer="$PEER user=$POSTGRES_USER connect_timeout=3 require_auth=scram-sha-256"

query_peer() { psql "$peer dbname=postgres" -XAtqc "$1"; }

peer_is_primary() { [[ "$(query_peer 'SELECT pg_is_in_recovery()')" == f ]]; }

copy_peer() {
    # A copy that was interrupted is begun anew: until the last line there is no data folder.
    query_peer "SELECT pg_create_physical_replication_slot('standby')
                 WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'standby')"
    rm -rf "$PGDATA.copy"
    mkdir -p "$(dirname "$PGDATA")"
    pg_basebackup -D "$PGDATA.copy" -d "$peer" --slot=standby --wal-method=stream --checkpoint=fast --write-recovery-conf
    # After its promotion this server has no standby that a commit could wait for.
    echo "synchronous_standby_names = ''" >> "$PGDATA.copy/postgresql.auto.conf"
    [[ ! -d $PGDATA ]] || rmdir "$PGDATA"
    mv "$PGDATA.copy" "$PGDATA"
}

if [[ ! -s $PGDATA/PG_VERSION ]]; then
    if [[ ${MAKES_DATA:-no} != yes ]]; then
        until peer_is_primary; do
            echo "wait for the primary: $PEER"
            sleep 2
        done
    fi
    if peer_is_primary; then
        copy_peer
    fi
elif [[ ! -e $PGDATA/standby.signal ]] && peer_is_primary; then
    echo "$PEER is the primary, and so was this server: remove this server's volume, and it starts again as the standby" >&2
    exit 1
fi
unset PGPASSWORD
exec docker-entrypoint.sh "$@"
