"""Messages between the processes of a live run, and their transport."""
