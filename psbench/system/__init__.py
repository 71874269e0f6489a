"""What the machine offers: files that are written whole or not at all, and the memory and disk left."""
