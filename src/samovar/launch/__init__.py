"""Who am I, who are the others; starting and ending ranks. The only room that reads the environment."""
