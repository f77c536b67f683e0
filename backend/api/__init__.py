"""HTTP: parse, call a service, return."""
