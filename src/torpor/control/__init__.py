"""The control plane: keeps the records, speaks the public API and decides; it reaches hosts by the wire only."""
