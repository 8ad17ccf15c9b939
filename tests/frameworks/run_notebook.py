"""`python run_notebook.py FILE`: run a notebook as Jupyter does, interrupt the cell that watches, print all outputs."""

# ruff: noqa: ANN001, ANN201, PLC0415
# mypy: ignore-errors

import asyncio
import signal
import sys
import threading


def main(path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=200)
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            if "except KeyboardInterrupt" in cell.source:
                threading.Thread(target=interrupt_once_it_speaks, args=(client, cell), daemon=True).start()
            client.execute_cell(cell, index)
            show(cell)


def interrupt_once_it_speaks(client, cell):
    """Interrupt the kernel as Jupyter's stop button does: SIGINT to its process group."""
    pause = threading.Event()
    while "step 40 loss" not in text_of(cell):
        pause.wait(0.1)
    asyncio.run(client.km.provisioner.send_signal(signal.SIGINT))


def text_of(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def show(cell):
    print(text_of(cell), end="")
    for output in cell.outputs:
        print(*output.get("data", {}), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
