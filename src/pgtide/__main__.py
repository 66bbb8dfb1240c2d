"""`python -m pgtide`."""

from pgtide.cli import main

if __name__ == "__main__":
    main()
