"""What tests of several rooms need."""

from click.testing import CliRunner

from lowprec.cli.app import cli


def command(*arguments: object, code: int = 0) -> str:
    """Run `lowprec` in this process and return what it prints, once it has ended with the code that is expected.

    A mistake of the user, code 2, prints one line, to stderr.
    """
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    if code < 2:
        return done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr
