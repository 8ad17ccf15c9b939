"""Errors that another process receives, as a pool's parent does from its workers."""

from __future__ import annotations

import copy
import pickle

import pytest

from clusterddp import errors
from clusterddp.errors import ClusterddpError, HostError, HostKeyError, HostsError, InventoryError, LockError
from clusterddp.hosts.ssh.known_hosts import UnknownHostKeyError

FAILED = HostError("gpu00", "no answer", remedy="ask later", trace="Traceback")


@pytest.mark.parametrize(
    "error",
    [
        FAILED,
        HostKeyError("gpu00", "unknown key", fingerprint="SHA256:x", known_hosts_line="gpu00 ssh-ed25519 x"),
        UnknownHostKeyError("gpu00", "unknown key", fingerprint="SHA256:x", known_hosts_line="gpu00 ssh-ed25519 x"),
        HostsError([FAILED, errors.UnreachableError("gpu01", "no route")]),
        LockError("a.lock", "damaged"),
        InventoryError("no mapping", where="i.yaml:3", remedy="write one"),
        errors.RunError("run x has ended", remedy="`clusterddp why` says how"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: ClusterddpError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.args) == (str(error), error.args)
        fields, others = ({name: str(value) for name, value in vars(one).items()} for one in (error, other))
        assert others == fields
