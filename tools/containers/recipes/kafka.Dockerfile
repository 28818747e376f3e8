# The embedded broker, with user, folders and variables of the official image, as far as compose/ uses these.
FROM trial/debian
RUN useradd --uid 1000 --create-home appuser \
    && install -d -o appuser -g appuser /var/lib/kafka/data /opt/kafka/config /opt/kafka/logs
COPY jre /opt/jre
COPY libs /opt/kafka/libs
COPY kafka.sh /opt/kafka/run.sh
COPY api_versions.py /opt/kafka/bin/kafka-broker-api-versions.sh
RUN chmod +x /opt/kafka/run.sh /opt/kafka/bin/kafka-broker-api-versions.sh
USER appuser
ENTRYPOINT ["/opt/kafka/run.sh"]
