"""What crosses a process boundary: the models of the HTTP interfaces, the error table, stream frames, transports."""
