"""``run --notify``: report a run's events to a command or a URL while this terminal follows it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from clusterddp.cli.option_checks import is_url
from clusterddp.cli.output import say
from clusterddp.project.crash import hide_secrets
from clusterddp.remote.shared.text.redaction import Redaction
from clusterddp.runs.run_on_hosts import Webhook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.remote.shared.run.run_record import RunRecord

SEND_TIMEOUT = 20.0  # seconds, for one command or request


def webhook(target: str, silence: float) -> Webhook | None:
    """Return the webhook for the run's hosts if the target is a URL; ``silence`` is that of ``--silence``."""
    _hide_in_logs(target)
    return Webhook(url=target, silence=silence) if is_url(target) else None


class Notifier:
    """Reports the events of one run, each in a thread of its own, so that nothing waits for it.

    ``target`` is a URL, which receives each event as JSON (``notice_of``); or a command for the shell, which gets the
    same in variables: ``CLUSTERDDP_EVENT``, ``CLUSTERDDP_TEXT``, …. Empty: nothing is reported. The caller keeps
    ``record``, of the run's latest attempt, up to date.
    """

    def __init__(self, target: str, run: str, record: RunRecord) -> None:
        self._target, self._run, self.record = target, run, record
        _hide_in_logs(target)
        self._threads: list[threading.Thread] = []
        self._failed = False

    def tell(self, event: str, text: str) -> None:
        """Report one event in a new thread; docs/following.md lists their names."""
        if self._target:
            from clusterddp.remote.shared.run.webhook_request import notice_of  # noqa: PLC0415 - HTTP, only for --notify

            notice = notice_of(self._run, _redacted(self.record), event, text, time.time_ns())
            thread = threading.Thread(target=self._send, args=(notice,), name="notify", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Wait for the reports that are under way, with a limit; Ctrl-C ends the wait and keeps the run's exit code."""
        deadline = time.monotonic() + SEND_TIMEOUT  # of all: a server may answer each with a byte now and then
        try:
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            say("--notify: not waited for any longer")

    def _send(self, notice: Mapping[str, Any]) -> None:
        """Send one notice; print only the first failure."""
        if is_url(self._target):
            from clusterddp.remote.shared.run.webhook_request import post  # noqa: PLC0415 - HTTP, only for --notify

            why, _ = post(self._target, notice, SEND_TIMEOUT)
        else:
            why = _run(self._target, notice)
        if why and not self._failed:
            self._failed = True
            say(f"--notify: {why}; nobody is told")


def _hide_in_logs(target: str) -> None:
    """Keep the target out of logs: anyone with a webhook's URL can write there."""
    if is_url(target):
        from clusterddp.remote.shared.run.webhook_request import secrets_of  # noqa: PLC0415 - HTTP, only for --notify

        hide_secrets(secrets_of(target))
    else:
        hide_secrets([target])


def _redacted(record: RunRecord) -> RunRecord:
    """Return the run's record without values of secrets in its name and script."""
    redaction = Redaction(os.environ.get(name, "") for name in record.secrets)
    return record._replace(name=redaction.value(record.name), script=redaction.value(record.script))


def _run(command: str, notice: Mapping[str, Any]) -> str:
    """Run the command; return why it failed, or an empty text."""
    variables = {f"CLUSTERDDP_{name.upper()}": _variable_text(value) for name, value in notice.items()}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=SEND_TIMEOUT,
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error) if isinstance(error, OSError) else type(error).__name__
    return f"the command ended with {done.returncode}" if done.returncode else ""


def _variable_text(value: Any) -> str:
    """Return a field of a notice as text for a variable: names separated by commas, empty for None."""
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)
