"""`python -m tune_speed` is the command `tune-speed`."""

from tune_speed.cli.main import main

if __name__ == "__main__":
    main()
