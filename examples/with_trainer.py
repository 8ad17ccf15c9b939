"""Hugging Face's Trainer on a small GPT-2 made at random, which goes on from its last checkpoint.

    clusterddp run examples/with_trainer.py --steps 20 --out out

`--out` has to be a folder that all hosts see; where each has its own disk only, `save_on_each_node=True` of
TrainingArguments lets every host keep a copy. Nothing is downloaded. docs/metrics.md says how
W&B or MLflow, in `report_to`, know the run.
"""

import argparse
import gc
from pathlib import Path

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from torch import distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Tell(TrainerCallback):
    """Print the loss as one line, by rank 0 alone."""

    def on_log(self, _args: object, state: object, _control: object, logs: dict, **_: object) -> None:
        """Print the loss whenever the Trainer logs (a hook of `TrainerCallback`)."""
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def main() -> None:
    """Train up to `--steps` steps, those of earlier runs included."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    set_seed(1)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=32, bos_token_id=0, eos_token_id=0)
    texts = [{"input_ids": [(row + at) % 32 for at in range(16)]} for row in range(256)]
    for text in texts:
        text["labels"] = text["input_ids"]
    arguments = TrainingArguments(
        output_dir=str(args.out),
        use_cpu=not torch.cuda.is_available(),
        max_steps=args.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_steps=10,
        save_total_limit=2,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=texts, callbacks=[Tell()])
    last = get_last_checkpoint(str(args.out)) if args.out.is_dir() else None
    if last and trainer.is_world_process_zero():
        print(f"resumed from {Path(last).name}")
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
    gc.collect()  # the Trainer and its model, which hold the group: docs/examples.md, "the end of a worker"
    dist.destroy_process_group()
