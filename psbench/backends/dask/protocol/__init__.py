"""What the processes of a live run say to each other, and how it travels."""
