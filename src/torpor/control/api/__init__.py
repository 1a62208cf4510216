"""The public HTTP API: parse, call a service, answer."""
