"""The pure core: events, actions, the cluster view, the engine that joins them, and the event log."""
