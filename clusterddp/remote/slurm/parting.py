"""Delay the end of a job whose nodes share no folder until a client that follows the run has fetched their files."""

import os
import re
import subprocess
import time

from .job_folder import JobFolder

PATIENCE = 60.0  # seconds for the files to be fetched
LOOK = 0.1
LOOK_FOR_STEPS = 2.0  # seconds between two checks whether a client is there
STEP = re.compile(r"[0-9_]+\.[0-9]+")  # neither the script's own step nor Slurm's external one


def wait_for_collection(folder: JobFolder, start: str) -> None:
    """Wait until the nodes' files are fetched: a minute at most, and only while a client follows the run."""
    deadline, look = time.monotonic() + PATIENCE, 0.0
    while not folder.collected(start) and time.monotonic() < deadline:
        if time.monotonic() >= look:
            look = time.monotonic() + LOOK_FOR_STEPS
            if not _is_watched():
                break
        time.sleep(LOOK)
    folder.remove_code()


def _is_watched() -> bool:
    """Whether the job has another step: the helper of a client that follows the run."""
    argv = ["squeue", "--steps", "--noheader", "--format=%i", "--jobs", os.environ["SLURM_JOB_ID"]]
    said = subprocess.run(argv, check=False, capture_output=True, text=True)
    return said.returncode != 0 or any(map(STEP.fullmatch, said.stdout.split()))
