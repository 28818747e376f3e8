"""Generate `schemas/generated/` from the schemas."""
