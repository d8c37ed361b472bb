"""The nets of the zoo, written down once in Python; generate.py makes their prototxts of it."""
