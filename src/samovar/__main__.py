"""`python -m samovar`: the command line, as the program `samovar`."""

from samovar.cli.entry import main

if __name__ == "__main__":
    main()
