"""Small tools that have never heard of a sandbox."""
