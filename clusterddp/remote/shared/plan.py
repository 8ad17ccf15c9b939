"""What a node is told to do: the plan, as both sides read and write it."""

BACKEND = "clusterddp"  # the name behind --rdzv-backend
OLDEST_TORCH = (2, 6)  # the first that looks for such entry points
PORT_TO_COME = "{port}"  # in a plan's --rdzv-endpoint, until the port of the store is known
AGENT_LOG = "agent.out"  # the agent's own output, in the spool's logs
