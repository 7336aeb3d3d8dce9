"""Where the servers are, and the key that messages are sealed with."""
