"""The archive: closed days of finished runs as Avro files in a folder or on S3."""
