"""transformers' Trainer on a small GPT-2 made from its configuration: nothing is downloaded."""

# mypy: ignore-errors

import hashlib
import os

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

if __name__ == "__main__":
    set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=32, bos_token_id=0, eos_token_id=0)
    )
    texts = [{"input_ids": [(row + at) % 32 for at in range(16)]} for row in range(32)]
    for text in texts:
        text["labels"] = text["input_ids"]
    arguments = TrainingArguments(
        output_dir=os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], "out"),  # noqa: PTH118
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=2,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=texts)
    done = trainer.train()
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    told = [arguments.process_index, arguments.world_size, done.global_step, round(done.training_loss, 6)]
    print("result", *told, hashlib.sha256(weights).hexdigest())
