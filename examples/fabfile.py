"""A fabfile that trains: clusterddp's tasks under their own name, and one of its own over the same connections.

    fab -H gpu00,gpu01 clusterddp.facts
    fab -H gpu00,gpu01 clusterddp.start toy_ddp.py --args="--steps 5"
    fab train --on gpu00,gpu01

The interpreter that has torch stands in fabric.yaml beside this file: `clusterddp: {python: /opt/train/bin/python}`.
"""

from fabric import SerialGroup, task
from invoke import Collection, Context

from clusterddp import tasks
from clusterddp.fabfile import namespace


@task
def train(c: Context, on: str, steps: str = "5") -> None:
    """Start the toy on hosts, follow it, and say how it ended."""
    variables = dict(c.config.get("clusterddp") or {})
    hosts = SerialGroup(*on.split(","), config=c.config)
    run = tasks.start(hosts, "toy_ddp.py", ["--steps", steps], **variables)
    for line in tasks.logs(hosts, run, follow=True, **variables):
        print(f"[{line.rank}] {line.text}")
    print(tasks.status(hosts, run, **variables)["verdict"])


ns = Collection(train)
ns.add_collection(namespace)
