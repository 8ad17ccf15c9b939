"""The links of ``clusterddp_links`` in a workdir, so that ``./data`` works on every host wherever its data lies."""

import os
from typing import List, Mapping

from ..shared.workdir.manifest import as_text, checked_path, on_disk
from ..system.bootstrap import home_folder
from ..transfer.descriptor_walk import open_or_make


def make_links(root: bytes, links: Mapping[str, str]) -> List[str]:
    """Create the links that are missing; return a line for the user on each whose path or target is wrong.

    ``links`` maps a path below the workdir ``root``, which must exist, to a path on this host, absolute or from ``~/``.
    """
    notices = []
    for name, target in sorted(links.items()):
        full = os.path.join(root, on_disk(checked_path(name)))
        destination = on_disk(os.path.join(home_folder(), target[2:]) if target.startswith("~/") else target)
        if not os.path.lexists(full):
            folder = open_or_make(os.path.dirname(full))
            try:
                os.symlink(destination, os.path.basename(full), dir_fd=folder)
            finally:
                os.close(folder)
        if not os.path.islink(full) or os.readlink(full) != destination:
            notices.append(
                "%s is something else than the link to %s of clusterddp_links" % (as_text(full), as_text(destination))
            )
        elif not os.path.exists(full):
            notices.append("%s of clusterddp_links leads to %s, where nothing is" % (name, as_text(destination)))
    return notices
