"""``python -m gradreg``: the same as ``gradreg``."""

from gradreg.cli.main import main

if __name__ == "__main__":
    main()
