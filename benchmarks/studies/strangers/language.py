"""A language model in the Hugging Face Trainer, with accumulation, evaluation and its own checkpoints."""

import torch
from common import EVERY, Run, parsed_options
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

options = parsed_options()
generator = torch.Generator().manual_seed(1)
tokens = torch.randint(100, (320, 24), generator=generator)
data = [{"input_ids": row, "labels": row} for row in tokens]
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=24, n_embd=64, n_layer=2, n_head=2))
folder = options.folder / "trainer"
arguments = TrainingArguments(
    output_dir=str(folder), max_steps=options.steps, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    logging_steps=1, eval_strategy="steps", eval_steps=EVERY, save_steps=EVERY, save_total_limit=2, report_to=[],
    disable_tqdm=True, learning_rate=1e-3, seed=3,
)  # fmt: skip
if options.parts:
    from instrument.hf import AsyncTrainer as Trainer
parts, options.parts = options.parts, False  # the Trainer writes the checkpoints
run = Run(options, {})


class Losses(TrainerCallback):
    """Writes what the Trainer logs."""

    def on_log(self, args, state, control, logs=None, **_more) -> None:
        """Write the figures of a step."""
        names = {"loss": "loss", "eval_loss": "validation", "grad_norm": "norm"}
        figures = {name: float(logs[key]) for key, name in names.items() if key in logs}
        if figures:
            run.log(state.global_step - 1, **figures)


trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16], callbacks=[Losses()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if parts and folder.exists() else None)
