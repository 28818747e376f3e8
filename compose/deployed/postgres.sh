#!/bin/bash
# Start one of two PostgreSQL servers. One makes the data, the other copies them and follows. PEER names the other server
# for libpq. PEER_VOLUME is the folder with the volume of the other server, set for the server that makes the data of a new
# installation.
set -euo pipefail

PGPASSWORD=$(< "$POSTGRES_PASSWORD_FILE")
export PGPASSWORD
peer="$PEER user=$POSTGRES_USER connect_timeout=3 require_auth=scram-sha-256"

trap 'exit 143' TERM INT              # process 1 ignores what it does not trap; the server has its own

query_peer() { psql "$peer dbname=postgres" -XAtqc "$1"; }

peer_is_primary() { [[ "$(query_peer 'SELECT pg_is_in_recovery()')" == f ]]; }

refuse() { echo "$*" >&2; exit 1; }

# Each promotion begins a timeline. Until the checkpoint after a promotion, only the end of recovery has the new number.
own_timeline() {
    LC_ALL=C pg_controldata -D "$PGDATA" \
        | sed -nE "s/^(Latest checkpoint's TimeLineID|Min recovery ending loc's timeline): +//p" | sort -n | tail -n 1
}
peer_timeline() {
    query_peer 'SELECT greatest(c.timeline_id, r.min_recovery_end_timeline)
                  FROM pg_control_checkpoint() AS c, pg_control_recovery() AS r'
}

# This server was the primary. The other one may have replaced it, and then has the higher timeline.
check_promotions() {
    local own peers
    own=$(own_timeline)
    if [[ -d $PGDATA/pg_replslot/copied && -n $(LC_ALL=C postgres -D "$PGDATA" -C synchronous_standby_names) ]]; then
        until peers=$(peer_timeline); do
            echo "wait for $PEER, which may have newer data than timeline $own here; if it is lost: README, Without its standby"
            sleep 2
        done
    else
        peers=$(peer_timeline) || return 0
    fi
    ((peers <= own)) || refuse "$PEER has newer data (timeline $peers) than this server (timeline $own):" \
        "empty this server's volume, and it starts again as the standby"
    peer_is_primary || return 0
    ((peers == own)) || refuse "$PEER is a primary too, with older data (timeline $peers) than this server (timeline $own):" \
        "stop that server and empty its volume, never this one's"
    refuse "$PEER is a primary too, of the same timeline $own: stop one, and keep both volumes until you have compared their data"
}

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
    announce_copy
}

# From now on this server can replace the primary, which waits for this server when it starts. A slot is never copied.
announce_copy() {
    query_peer "SELECT pg_create_physical_replication_slot('copied')
                 WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'copied')"
}

# With data in the other volume, this server lost its own: new data would hide those of the installation.
is_new() { [[ -n ${PEER_VOLUME:-} ]] && ! compgen -G "$PEER_VOLUME/*/$(basename "$PGDATA")/PG_VERSION" > /dev/null; }

if [[ ! -s $PGDATA/PG_VERSION ]]; then
    if ! is_new; then
        until peer_is_primary; do
            echo "wait for the primary, to copy its data: $PEER"
            sleep 2
        done
        copy_peer
    fi
elif [[ ! -e $PGDATA/standby.signal ]]; then
    check_promotions
else
    announce_copy || echo "wait for the primary: $PEER"
fi
unset PGPASSWORD
exec docker-entrypoint.sh "$@"
