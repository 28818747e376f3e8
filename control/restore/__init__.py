"""Continue after a restore from a base backup, by what Kafka has (docs/adr/0081-restore.md)."""
