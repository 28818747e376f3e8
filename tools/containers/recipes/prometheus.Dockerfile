# Debian's Prometheus, with the folder and the user of the official image.
FROM trial/debian-prometheus
RUN install -d -o nobody -g nogroup /prometheus
ENTRYPOINT ["prometheus"]
