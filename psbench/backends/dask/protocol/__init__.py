"""The messages between the processes of a live run, and the connections that carry them."""
