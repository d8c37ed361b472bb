"""Who trains together: members come, show how far they are, leave and come back."""
