"""The commands; each module registers some with the application when it is imported."""
