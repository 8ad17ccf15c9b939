"""What the operation ``runs`` is asked, and the check of a host's reply: only its own nodes, in valid fields.

Who asks again, as `wait` does twice a second, says which long fields it has; what is the same is left out then. Who
asks many hosts says what it has from others: a run's record and verdict are the same on all of its nodes, which both
of them name.
"""

from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..logs.log_frames import is_run
from ..schema.fields import Fields
from ..schema.json_text import to_json
from ..schema.record import MAX_LENGTH, by_key, checked, field, maybe, record, record_in
from .node_report import NodeReport

MIN_LONG_FIELD = 256  # characters of JSON from which a field gets a digest and is left out while unchanged
COMMON_FIELDS = ("record", "verdict")  # of a node's report: those that are the same on all nodes of a run
MIN_COMMON_FIELD = 4096  # characters of JSON from which such a field need not be sent by every node
MAX_COMMON_FIELD = 1 << 20  # characters of JSON up to which the operator keeps one for the other nodes
MAX_CACHED = 16 << 20  # characters of JSON kept per host: about the size of the largest answer


@record
class StatusRequest(NamedTuple):
    """Which nodes of which runs a host reports, and in how much detail."""

    hosts: Optional[Tuple[str, ...]] = field(maybe(Fields.texts))  # whose nodes; None: those of all
    run: str = field(Fields.text, default="")  # only run ids that begin so
    reference: Optional[str] = field(Fields.maybe_text, default=None)  # only ids that begin so, or runs of this name
    project: Optional[str] = field(Fields.maybe_text, default=None)  # only runs of this project
    brief: bool = field(Fields.flag, default=False)  # for a list and a verdict alone
    # of each node's long fields that the operator has, the digests, by spool: equal ones are left out
    known: Optional[Mapping[str, Mapping[str, str]]] = field(maybe(by_key(by_key(Fields.text))), default=None)
    common: Tuple[str, ...] = field(Fields.texts, default=())  # digests of COMMON_FIELDS that the operator has


@record
class DamagedNode(NamedTuple):
    """A node whose files are damaged, and how."""

    run: str = field(checked(is_run, "a run's id"))
    host: str = field(Fields.text)
    damaged: str = field(checked(str.isprintable, "a line"))


def read_nodes(answer: Any, host: Optional[str], run: str) -> List[NodeReport]:
    """Check and return the nodes in a host's answer.

    ``host`` may report only itself; None if it sees the files of several hosts. ``run`` is a prefix of the ids of the
    requested runs. Raises ValueError if it is no such answer.
    """
    return [_report(fields, host, run) for fields in _nodes_in(answer)]


def split_damaged(answer: Any) -> Tuple[Any, List[str]]:
    """Split an answer into the readable runs and a message for each run whose files are damaged; raises ValueError."""
    whole, notices = [], []
    for given, fields in zip(answer, _nodes_in(answer)):
        if fields.given("damaged"):
            node = record_in(fields, DamagedNode)
            notices.append("run %s cannot be shown: %s" % (node.run, node.damaged))
        else:
            whole.append(given)
    return whole, notices


def common_digest(value: Any) -> Optional[str]:
    """The digest of the value of one of COMMON_FIELDS; None if every node sends it, whatever the others have sent."""
    import hashlib  # loads OpenSSL
    import json

    text = json.dumps(value, sort_keys=True)
    is_kept = MIN_COMMON_FIELD <= len(text) <= MAX_COMMON_FIELD
    return hashlib.sha256(text.encode()).hexdigest() if is_kept else None


def without_common_fields(node: Mapping[str, Any], known: Collection[str]) -> Dict[str, Any]:
    """Make a host's answer: a node without those of COMMON_FIELDS whose digests are ``known`` to the client.

    Their digests are in ``common``, by name.
    """
    answer = dict(node)
    digests = {name: common_digest(node[name]) for name in COMMON_FIELDS if node.get(name)} if known else {}
    left_out = {name: digest for name, digest in digests.items() if digest in known}
    for name in left_out:
        del answer[name]
    return dict(answer, common=left_out) if left_out else answer


def without_known_fields(node: Mapping[str, Any], known: Mapping[str, str]) -> Dict[str, Any]:
    """Make a host's answer: a node without those long fields whose digests are ``known`` to the client.

    Their names are in ``same``, the digests of the other long fields in ``digests``.
    """
    import hashlib  # loads OpenSSL
    import json

    answer = dict(node, same=[], digests={})
    for name, value in node.items():
        text = json.dumps(value, sort_keys=True)
        if len(text) < MIN_LONG_FIELD:
            continue
        digest = hashlib.sha256(text.encode()).hexdigest()
        if known.get(name) == digest:
            del answer[name]
            answer["same"].append(name)
        else:
            answer["digests"][name] = digest
    return answer


class Answers:
    """The operator's cache of one host's answers, so that unchanged long fields are not sent again.

    ``digests`` are those of each node's long fields, by spool, to send with the next request.
    """

    def __init__(
        self,
        digests: Mapping[str, Mapping[str, str]],
        values: Mapping[Tuple[str, str], Any],
        sizes: Mapping[Tuple[str, str], int],
    ) -> None:
        self.digests = digests
        self._values = values  # by spool and name
        self._sizes = sizes  # of each as JSON

    def whole(self, answer: Any, most: int = MAX_CACHED) -> "Tuple[List[Dict[str, Any]], Answers]":
        """Restore the fields that an answer has left out; return the nodes and the cache for the next request.

        Raises ValueError if the answer leaves out an unknown field, or its long fields have over ``most`` characters.
        """
        nodes, digests, values, sizes = [], {}, {}, {}
        for given, fields in zip(answer, _nodes_in(answer)):
            node = dict(given)
            if fields.given("digests") and fields.given("same"):
                spool, new = fields.text("spool"), fields.mapping("digests", Fields.text)
                known = self.digests.get(spool, {})
                for name in fields.texts("same"):
                    if name not in known:
                        raise ValueError("it leaves out %s" % name)
                    new[name], node[name] = known[name], self._values[spool, name]
                    sizes[spool, name] = self._sizes[spool, name]
                digests[spool] = new
                values.update({(spool, name): node.get(name) for name in new})
            nodes.append({name: value for name, value in node.items() if name not in ("same", "digests")})
        sizes.update({key: len(to_json(value)) for key, value in values.items() if key not in sizes})
        if sum(sizes.values()) > most:  # else each answer could add more fields and leave them out the next time
            raise ValueError("it is more than %d MiB" % (most >> 20))
        return nodes, Answers(digests, values, sizes)


NO_ANSWERS = Answers({}, {}, {})


def _nodes_in(answer: Any) -> Tuple[Fields, ...]:
    """The fields of each node in an answer; raises ValueError if it is no list of objects."""
    return Fields({"nodes": answer}, most=MAX_LENGTH).each("nodes", lambda fields: fields)


def _report(fields: Fields, host: Optional[str], run: str) -> NodeReport:
    report = record_in(fields, NodeReport)
    if report.host != (host or report.host) or not report.run.startswith(run):
        raise ValueError("it speaks of %s on %s" % (report.run, report.host))
    return report
