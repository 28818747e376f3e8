#!/bin/sh
# Write KAFKA_… as properties, format the folder once, then become the broker.
set -eu
config=/opt/kafka/config/server.properties
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
    echo "$(echo "$name" | tr A-Z_ a-z.)=$value"
done > "$config"
set -- /opt/jre/bin/java -Xmx512m -XX:+UseSerialGC -cp '/opt/kafka/libs/*'
if [ ! -e "$KAFKA_LOG_DIRS/meta.properties" ]; then
    "$@" kafka.tools.StorageTool format --cluster-id "$CLUSTER_ID" --config "$config"
fi
exec "$@" kafka.Kafka "$config"
