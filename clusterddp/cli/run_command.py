"""Click's command for ``clusterddp run``: it keeps the words before SCRIPT, as a ``--`` among them has a meaning."""

from __future__ import annotations

import click

_WORDS_KEY = f"{__name__}.before"  # where the words are kept in click's ``Context.meta``


class RunCommand(click.Command):
    """A command that keeps the words before SCRIPT: with a ``--`` there, all that follows is meant for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but keep the words before SCRIPT: click drops the ``--``."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        script_and_args = len(ctx.params.get("args") or ()) + (ctx.params.get("script") is not None)
        ctx.meta[_WORDS_KEY] = words[: len(words) - script_and_args]
        return rest


def words_before_script() -> list[str]:
    """Return the words between ``run`` and SCRIPT on this command line."""
    words: list[str] = click.get_current_context().meta.get(_WORDS_KEY, [])
    return words
