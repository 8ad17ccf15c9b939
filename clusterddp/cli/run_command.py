"""Click's command for ``clusterddp run``: it keeps the words before SCRIPT, as a ``--`` among them has a meaning."""

from __future__ import annotations

import click

_BEFORE = f"{__name__}.before"  # the key in a context's meta


class RunCommand(click.Command):
    """A command that keeps the words before SCRIPT: with a ``--`` there, all that follows is meant for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, which drops the ``--``."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        behind = len(ctx.params.get("args") or ()) + (ctx.params.get("script") is not None)
        ctx.meta[_BEFORE] = words[: len(words) - behind]
        return rest


def words_before_script() -> list[str]:
    """The words between ``run`` and SCRIPT on the command line being run."""
    words: list[str] = click.get_current_context().meta.get(_BEFORE, [])
    return words
