"""What an engine would do with a wheel, and in what two wheels differ."""
