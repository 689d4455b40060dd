"""What this host is, and whether a manifest is for it."""
