"""The main flow, one verb a file."""
