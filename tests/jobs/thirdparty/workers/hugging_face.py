"""A training with the Hugging Face Trainer: evaluations, checkpoints, resuming from one of them, and a last save."""

from __future__ import annotations

import gc
import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging

from tests.jobs.thirdparty.issued import counted, digest, exactly, report


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sentences."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(64, (count, 12), generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def trainer(folder: str, steps: int) -> Trainer:
    """A tiny model and its Trainer."""
    set_seed(7)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        seed=7,
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    return Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens(64), eval_dataset=Tokens(7))


if __name__ == "__main__":
    logging.disable_progress_bar()  # of writing a model: how often it is drawn depends on how busy the machine is
    with counted() as issued:
        first = trainer(sys.argv[1], 4)
        loss = first.train().training_loss
        del first
        gc.collect()  # or its optimizer would be the one whose steps count
        again = trainer(sys.argv[1], 6)
        again.train(resume_from_checkpoint=get_last_checkpoint(sys.argv[1]))
        metrics = again.evaluate()
    losses = [exactly(loss), exactly(metrics["eval_loss"]), digest(again.model.parameters())]
    report(issued, losses=losses, steps=6)
    torch.distributed.destroy_process_group()
