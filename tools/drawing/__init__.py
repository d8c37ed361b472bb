"""The pictures of the documents: what they show is simulated here, or read from the sources, and drawn as SVG."""
