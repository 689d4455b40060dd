"""What is to be compiled, as its owner writes it, and every check of that."""
