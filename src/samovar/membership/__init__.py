"""Members that train together: they come, show their progress, leave and come back."""
