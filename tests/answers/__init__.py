"""Whether an engine with a wheel answers as it does without one: families of models, served for real on this CPU."""
