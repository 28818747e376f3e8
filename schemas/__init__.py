"""What travels: Avro schemas, their records and codecs."""
