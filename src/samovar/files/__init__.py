"""What a file holds, and one file as another."""
