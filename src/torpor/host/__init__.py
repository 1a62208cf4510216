"""The per-host agent: brings sandboxes to life on this machine, and answers the control plane over the wire."""
