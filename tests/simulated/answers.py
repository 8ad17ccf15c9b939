"""What simulated hosts answer: what a real helper answers (``template.py``), with their own names and addresses."""

from __future__ import annotations

import json
import platform
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.remote.shared.probes.network_records import DialResult, Heard, Listening
from clusterddp.remote.shared.run.stop_records import NodeProof, stop_answer
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.supervisor.start_records import CommittedNode, StartedNode
from tests.simulated.faults import address_of, name_of, number_of
from tests.simulated.run_parts import NodeText, RunPart
from tests.simulated.template import Piece, result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulated.template import Template

PORTS = (29400, 41000)  # on which every host listens
STORE_PORT, CONTROL_PORT = 29401, 29400
PROCESSES = 5  # of a run, on each host
OPEN_ENDED = ("listen",)  # operations that go on until the operator ends its data
PREFIX = 8  # of the hosts' network
SPEED = 100_000  # Mbit/s


class Question(NamedTuple):
    """An operation as it was asked of a host."""

    host: str
    operation: str
    args: Mapping[str, Any]
    args_text: bytes  # their JSON in place of ``args``, where it came in frames of its own
    data: bytes


class Hosts:
    """All simulated hosts; ``lines``: how many lines each worker of a run has printed when it has begun."""

    def __init__(self, template: Template, lines: int = 0) -> None:
        self._template, self._lines = template, lines
        self._runs: dict[str, RunPart] = {}
        self._own = {
            "facts": self._facts,
            "exec": self._exec,
            "listen": self._listen,
            "dial": self._dial,
            "start": self._start,
            "commit": self._commit,
            "runs": self._reports,
            "tail": self._tail,
            "stop": self._stop,
        }

    def hello(self, host: str) -> dict[str, Any]:
        """A helper's first frame."""
        hello = self._template.hello._asdict()
        return {**hello, "id": 0, "kind": "hello", "protocol": 1, "boot": f"{hello['boot']}-{host}"}

    def answer(self, question: Question) -> list[Piece]:
        """The pieces of a host's answer, the last of them its end. Raises HelperError as a helper refuses."""
        own = self._own.get(question.operation)
        if own is not None:
            return own(question)
        return self._ask(question)

    def _ask(self, question: Question) -> list[Piece]:
        """What the helper answers; that a host is told its own name makes no other question of it."""
        args = json.loads(json.dumps(question.args).replace(f'"{question.host}"', f'"{name_of(0)}"'))
        return self._template.ask(question.operation, args, question.data)

    def _facts(self, question: Question) -> list[Piece]:
        facts = dict(self._template.value("facts", question.args))
        address = address_of(number_of(question.host))
        loopback = [one for one in facts["addresses"] if one["interface"] == "lo"]
        card = {"interface": "eth0", "mtu": 9000, "up": True, "speed_mbit": SPEED}
        facts["addresses"] = [*loopback, {**card, "address": address, "family": 4, "prefix": PREFIX}]
        boot = f"{facts['boot']}-{question.host}"
        return [result({**facts, "hostname": question.host, "ssh_address": address, "boot": boot})]

    def _exec(self, question: Question) -> list[Piece]:
        pieces = self._ask(question)
        ours = re.compile(rb"\b" + re.escape(platform.node().encode()) + rb"\b")
        return [Piece(header, ours.sub(question.host.encode(), body)) for header, body in pieces]

    def _listen(self, _question: Question) -> list[Piece]:
        return [Piece({"kind": "data", **to_fields(Listening(PORTS))}, b""), result(to_fields(Heard()))]

    def _dial(self, question: Question) -> list[Piece]:
        text = question.args_text
        count = text.count(b'"nonce"') if text else len(question.args["targets"])
        answer = to_fields(DialResult("ok", rtt_us=120, bulk=True, sent=47))
        return [self._template.once(("dial", count), lambda: result([answer] * count))]

    def _start(self, question: Question) -> list[Piece]:
        size = question.args["shared"]
        shared, own = question.data[:size], json.loads(question.data[size:])["plan"]
        common = self._template.once(("shared", shared), lambda: json.loads(zlib.decompress(shared)))
        run = common["run"]
        if run not in self._runs:
            self._runs[run] = RunPart(self._template.state, {**common, **own})
            self._template.forget()
        spool = self._runs[run].spool_of(question.host, own.get("node_rank", 0))
        store = STORE_PORT if own.get("store") else 0
        return [result(to_fields(StartedNode(started=True, spool=spool, store=store, control=CONTROL_PORT)))]

    def _commit(self, question: Question) -> list[Piece]:
        part = self._runs[question.args["spool"].split("/")[-3]]
        if not part.ready.peers:
            part.begin(json.loads(zlib.decompress(question.data)))
            if self._lines:
                part.write_lines(self._lines)
            self._template.forget()
        return [result(to_fields(CommittedNode(alive=True, exit=None)))]

    def _reports(self, question: Question) -> list[Piece]:
        if not self._runs:
            return self._template.ask("runs", question.args)
        asked, known = dict(question.args or json.loads(question.args_text)), {}
        for spool, digests in (asked["known"] or {}).items():
            part = self._runs[spool.split("/")[-3]]
            known[part.spool.folder] = digests
        if asked["known"] is not None:
            asked["known"] = known
        first = next(iter(self._runs.values())).spool.host
        asked["hosts"] = [first] if asked["hosts"] else None
        nodes = self._template.once(
            ("nodes", json.dumps(asked, sort_keys=True)),
            lambda: [(node["run"], NodeText(node)) for node in json.loads(self._template.put("runs", asked)[-1].body)],
        )
        texts = []
        for run, node in nodes:
            part = self._runs[run]
            texts.append(
                node.of(question.host, part.plan.nproc, part.spool_of(question.host, number_of(question.host)))
            )
        return [Piece({"kind": "end"}, ("[" + ", ".join(texts) + "]").encode())]

    def _tail(self, question: Question) -> list[Piece]:
        args = dict(question.args)
        part = self._runs[args["spool"].split("/")[-3]]
        args["spool"] = part.spool.folder
        number, nproc = number_of(question.host), part.plan.nproc
        pieces = []
        for header, body in self._template.ask("tail", {**args, "follow": False}):
            own = {"rank": number * nproc + header["rank"] % nproc} if "rank" in header else {}
            pieces.append(Piece({**header, **own}, body))
        return pieces

    def _stop(self, question: Question) -> list[Piece]:
        part = self._runs[question.args["run"]]
        if not part.stopped:
            part.stop(question.args["reason"])
            self._template.forget()
        ended = part.spool.exit_record()
        proof = NodeProof(
            host=question.host,
            found=PROCESSES,
            killed=0,
            survivors=(),
            unknown=(),
            gpus=None,
            exit=to_fields(ended) if ended else {},
        )
        return [result(to_fields(stop_answer((proof,))))]
