"""The command line: a file a command, which parses, calls `tune_speed.api` and prints.

`main` has the application; `common` the options and forms of output that commands share. Commands
import what they need when they run: `tune-speed --help` imports neither numpy nor pydantic.
"""
