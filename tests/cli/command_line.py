"""Call `lowprec` in this process, and demand what every command keeps to."""

import csv
import json

from click.testing import CliRunner

from lowprec.cli.app import cli


def run(*words, code=0, **options):
    """Run a command that ends with this exit code."""
    done = CliRunner().invoke(cli, [str(word) for word in words], **options)
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def rows(*words, **options):
    """Return the rows of the table that a command prints."""
    return json.loads(run(*words, "--json", **options).stdout)


def csv_rows(*words):
    return list(csv.DictReader(run(*words, "--csv").stdout.splitlines()))


def refused(*words, match="", progress=0):
    """Run a command that must be refused with one line, after so many lines of progress; return it."""
    done = run(*words, code=2)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    printed = done.stderr.splitlines()
    assert len(printed) == progress + 1, printed
    assert printed[-1].startswith("error: "), printed
    assert match in printed[-1], printed
    return printed[-1]
