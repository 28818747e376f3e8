"""PostgreSQL: sessions, named statements, COPY, NOTIFY, partitions, low-water marks."""
