"""The names that PyTorch, Hugging Face, Lightning and nanoGPT have for settings. Each is a key and a flag too."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, tuple[str, ...]] = {
    "training.steps": ("max_steps", "max_iters"),
    "training.epochs": ("num_train_epochs", "num_epochs", "max_epochs"),
    "training.accumulation": ("gradient_accumulation_steps", "accumulate_grad_batches"),
    "training.clip": ("max_grad_norm", "gradient_clip_val", "grad_clip"),
    "training.learning_rate": ("lr",),
    "training.schedule": ("lr_scheduler_type", "lr_scheduler"),
    "training.warmup": ("warmup_steps", "num_warmup_steps", "warmup_iters"),
    "model.layers": ("num_layers", "num_hidden_layers", "n_layer"),
    "model.width": ("hidden_size", "d_model", "n_embd"),
    "model.heads": ("num_heads", "num_attention_heads", "n_head"),
    "model.vocabulary": ("vocab_size",),
    "model.checkpointing": ("gradient_checkpointing", "activation_checkpointing"),
    "model.compile": ("torch_compile",),
    "data.batch": ("batch_size", "per_device_train_batch_size"),
    "data.sequence": ("sequence_length", "max_seq_length", "block_size"),
    "data.workers": ("num_workers", "dataloader_num_workers"),
    "data.prefetch_factor": ("dataloader_prefetch_factor",),
    "data.persistent_workers": ("dataloader_persistent_workers",),
    "data.pin_memory": ("dataloader_pin_memory",),
    "distributed.bucket_mb": ("bucket_cap_mb",),
    "checkpoint.folder": ("output_dir",),
    "checkpoint.every": ("save_steps",),
    "checkpoint.keep": ("save_total_limit",),
    "checkpoint.resume": ("resume_from_checkpoint",),
    "monitor.every": ("logging_steps", "log_interval", "log_every_n_steps"),
}


def settings_by_alias(section: str) -> dict[str, str]:
    """Return the field that each alias in a section stands for: {"lr": "learning_rate"} of "training"."""
    own = {key.split(".")[1]: names for key, names in ALIASES.items() if key.startswith(f"{section}.")}
    return {alias: field for field, aliases in own.items() for alias in aliases}


def alias_flags(key: str) -> tuple[str, ...]:
    """Return the flags, without dashes in front, of a setting's aliases: ("lr",) of "training.learning_rate"."""
    return tuple(alias.replace("_", "-") for alias in ALIASES.get(key, ()))
