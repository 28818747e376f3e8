"""Generated from the schemas: records and their codec. Do not edit."""
