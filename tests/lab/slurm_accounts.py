"""Slurm's accounting on a lab's controller: slurmdbd with its database, and what an administrator tells it.

Everything is root's, and reached over sockets of the host.
"""

from __future__ import annotations

import shutil
from functools import cache
from typing import TYPE_CHECKING

from tests.lab.options import SYSTEM_PATH

if TYPE_CHECKING:
    from tests.lab.host import LabHost

PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")
ACCOUNT = "vision"  # the users' own
CONFIG = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={controller}
AccountingStorageEnforce=associations,limits,qos,safe
AccountingStorageTRES=gres/gpu
"""
DAEMON = """\
AuthType=auth/munge
DbdHost={controller}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile=/var/log/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""
START = """\
set -e
data=/var/lib/lab-mariadb
install -d /run/mysqld $data
mariadb-install-db --no-defaults --user=root --datadir=$data --skip-test-db --skip-name-resolve \
    --auth-root-authentication-method=socket >/dev/null
setsid mariadbd --no-defaults --user=root --datadir=$data --skip-networking --socket=/run/mysqld/mysqld.sock \
    --pid-file=/run/mysqld/mysqld.pid --innodb-buffer-pool-size=32M --innodb-log-file-size=8M \
    --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync >/var/log/mariadb.log 2>&1 </dev/null &
until mariadb --no-defaults --socket=/run/mysqld/mysqld.sock --execute='SELECT 1' >/dev/null 2>&1; do sleep 0.1; done
chmod 600 /etc/slurm/slurmdbd.conf
slurmdbd
until sacctmgr --immediate add cluster lab >/dev/null 2>&1; do sleep 0.1; done
"""


@cache
def why_no_accounts() -> str | None:
    """The reason why a lab's Slurm has no accounting on this machine; None when it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    return f"{', '.join(missing)} not installed (slurmdbd, mariadb-server-core)" if missing else None


def start_accounting(controller: LabHost, more: str = "") -> None:
    """Start the database and slurmdbd, with one account for all users; before slurmctld. ``more`` of its settings."""
    controller.write("/etc/slurm/slurmdbd.conf", more + DAEMON.format(controller=controller.name), user="root")
    controller.run(["bash", "-c", START], user="root", timeout=120)
    tell(controller, "add", "account", ACCOUNT, "cluster=lab")
    for user in controller.users:
        tell(controller, "add", "user", user.name, f"account={ACCOUNT}")


def tell(controller: LabHost, *words: str) -> None:
    """``sacctmgr`` as an administrator; what is as it is told to be already is no error."""
    done = controller.run(["sacctmgr", "--immediate", *words], user="root", check=False)
    if done.returncode and "Nothing" not in done.stdout + done.stderr:
        raise AssertionError(f"sacctmgr {' '.join(words)}: {done.stdout}{done.stderr}")
