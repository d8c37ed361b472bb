"""This process's rank and the others; starting and ending ranks. Only this room reads the environment."""
