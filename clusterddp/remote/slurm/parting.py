"""The end of a job whose nodes share no folder: its script waits until a follower of the run has what they know."""

import os
import re
import subprocess
import time

from .job_folder import JobFolder

PATIENCE = 60.0  # seconds for the files to be fetched
LOOK = 0.1
LOOK_FOR_STEPS = 2.0  # seconds between two questions whether anybody is there who might
STEP = re.compile(r"[0-9_]+\.[0-9]+")  # not the script's own, nor that with which Slurm holds a job


def wait_for_collection(folder: JobFolder, start: str) -> None:
    """Wait until what the nodes have was fetched, as long as somebody is there who may do it, a minute at most."""
    deadline, look = time.monotonic() + PATIENCE, 0.0
    while not folder.collected(start) and time.monotonic() < deadline:
        if time.monotonic() >= look:
            look = time.monotonic() + LOOK_FOR_STEPS
            if not _is_watched():
                break
        time.sleep(LOOK)
    folder.remove_code()


def _is_watched() -> bool:
    """Whether the job has any other step: a helper of somebody who follows the run."""
    argv = ["squeue", "--steps", "--noheader", "--format=%i", "--jobs", os.environ["SLURM_JOB_ID"]]
    said = subprocess.run(argv, check=False, capture_output=True, text=True)
    return said.returncode != 0 or any(map(STEP.fullmatch, said.stdout.split()))
