"""How programs of one machine find its server: names of files in the server's home directory."""

# The API key, one line, for the owner's eyes only.
KEY_FILE = "key"
# JSON with the running server's address and process.
SERVER_FILE = "server.json"
