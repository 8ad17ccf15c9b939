"""What runs leave on the hosts of a cluster: looked at, and removed; runs that live are stopped first.

A base of ``api.Cluster``, which has the hosts and finds the runs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.api.code_and_commands import BesideRuns
from clusterddp.environments import removal
from clusterddp.errors import UnreachableError
from clusterddp.launch import option_values
from clusterddp.launch.option_values import read
from clusterddp.remote.shared.run.run_settings import GRACE
from clusterddp.runs import beside, cleanup, holdings
from clusterddp.text.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.inventory import HostEntry
    from clusterddp.runs.choose import Requester
    from clusterddp.runs.holdings import EverythingRemoved, Holdings
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run import Run
    from clusterddp.runs.run_view import RunView


class LeftOnHosts(BesideRuns):
    """Workdirs, environments, processes and files of runs on a cluster's hosts."""

    @property
    def _keeping(self) -> Sequence[HostEntry]:
        """The hosts that keep something of runs."""
        raise NotImplementedError

    @property
    def owner(self) -> Requester:
        """Whose runs are ours."""
        raise NotImplementedError

    def attach(self, view: RunView) -> Run:
        """The run that a view is of."""
        raise NotImplementedError

    def workdirs_beside(self) -> list[beside.WorkdirBeside]:
        """The folders beside this project's workdir on the hosts that answer: of ``run --workdir NAME``."""
        return beside.listed(self._keeping, self._open, self.project, self.notify)

    def down(
        self,
        views: Iterable[RunView] | None = None,
        *,
        purge: bool = False,
        workdirs: Sequence[beside.WorkdirBeside] = (),
        environments: Sequence[EnvironmentFound] = (),
        grace: float | str = GRACE,
    ) -> tuple[dict[str, list[Proof]], list[cleanup.Cleaned]]:
        """Stop runs, and remove what is old from every host; the project's workdir stays.

        Args:
            views: The runs to stop; None for all of this project that live or have left processes.
            purge: Remove all ended runs of this project with their run dirs, and where no other project's are left
                also our helper; every connection is closed then.
            workdirs: Folders beside it, of ``workdirs_beside``, to be removed with all that is in them.
            environments: Those of ``environments`` that are to be removed.
            grace: Seconds, or a duration, between SIGTERM and SIGKILL.

        Returns: each run's proofs by its id, and what was removed, host by host.
        """
        grace = read("grace", duration, grace)
        purge = read("purge", option_values.flag, purge)
        if views is None:
            left = {found.run for found in self.orphans()}
            own = [view for view in self.list_runs() if self.owner.shares_project(view)]
            views = [view for view in own if view.live or view.run in left]
        proofs = {view.run: self.attach(view).stop(grace=grace, reason="by `down`") for view in views}
        removed = beside.remove(self._keeping, self._open, self.project.workdir, workdirs, list(proofs))
        gone = removal.remove(self._keeping, self._open, environments)
        cleaned = cleanup.clean(self._keeping, self._open, self.project.known_id, purge=purge)
        cleaned = [replace(one, beside=removed.get(one.host), environments=gone.get(one.host)) for one in cleaned]
        if purge:  # the helpers' own code may be gone
            self.connections.close_hosts()
        return proofs, cleaned

    def environments(self, *, last_too: bool = False) -> list[EnvironmentFound]:
        """The environments of locks on the hosts that answer, each with why it stays if `down` does not remove it.

        Args:
            last_too: What this project used last does not stay either.
        """
        project, now = self.project.known_id, time.time_ns()
        return removal.listed(self._keeping, self._open, project, now, self.notify, last_too=last_too)

    def holdings(self) -> list[Holdings]:
        """What each host holds of ours in this account, of all projects."""
        return holdings.held(self._keeping, self._open, self.project)

    def remove_everything(self, shown: Sequence[Holdings]) -> list[EverythingRemoved]:
        """Remove all that hosts hold of ours in this account: code, data, records, environments, helpers.

        Args:
            shown: What ``holdings`` has told of the hosts: a workdir that is not in it stays.

        Raises:
            RunError: a run, of any project of this account, is live; nothing is removed then.
        """
        holdings.refuse_live(shown)
        gone = holdings.remove(self._keeping, self._open, self.project, shown)
        self.connections.close_hosts()  # the helpers' own code is gone
        return gone

    def orphans(self) -> list[cleanup.Orphans]:
        """Processes of this account on the hosts that answer, of runs whose supervisor is gone."""
        outcomes = cleanup.orphans(self._keeping, self._open)
        for outcome in outcomes:
            if outcome.error and not isinstance(outcome.error, UnreachableError):  # which who lists runs tells
                self.notify(f"processes of lost runs are not known: {outcome.error}")
        return [found for outcome in outcomes for found in outcome.value or ()]
