"""Every schema of a release is stored by its fingerprint, so that any reader finds it."""
