"""The doctor's checks, a file a subject. Each is one entry; `checks.engine` runs them."""
