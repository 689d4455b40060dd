"""Who made a wheel, and whether this host takes it from them: signatures, keys, identities, policy."""
