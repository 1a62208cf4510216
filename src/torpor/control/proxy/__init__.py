"""Servers in sandboxes, reached by HTTP and WebSocket through this server."""
