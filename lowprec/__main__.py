"""`python -m lowprec` is `lowprec`."""

from lowprec.cli import main

if __name__ == "__main__":
    main()
