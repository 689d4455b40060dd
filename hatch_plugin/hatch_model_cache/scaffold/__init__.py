"""Recipe projects from the command that serves the model, and the templates."""
