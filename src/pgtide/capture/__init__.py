"""Capture: one slot into one journal. It does not know that sinks exist."""
