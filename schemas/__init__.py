"""Wire formats: Avro schemas, their records and codecs."""
