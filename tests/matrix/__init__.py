"""What changes the engine's key, tried on the real engine, one configuration at a time. See `key_factors`."""
