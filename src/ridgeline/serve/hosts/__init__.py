"""Where engines live: threads of the server, or worker processes."""
