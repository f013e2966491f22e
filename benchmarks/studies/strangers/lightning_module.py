"""A Lightning module with validation; Lightning writes a checkpoint after each epoch."""

import lightning
import torch
from common import Run, parsed_options
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = parsed_options()
PER_EPOCH = 10
inputs = torch.randn(16 * PER_EPOCH, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs[:, :1] * 2)
folder = options.folder / "lightning"
parts, options.parts = options.parts, False  # Lightning writes the checkpoints
run = Run(options, {})


class Module(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        run.log(self.global_step, loss=loss.item())
        return loss

    def validation_step(self, batch, _index) -> None:
        """Write the loss of a batch of the validation."""
        x, y = batch
        run.log(self.global_step - 1, validation=nn.functional.mse_loss(self.layers(x), y).item())

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


torch.manual_seed(0)
loader = DataLoader(data, batch_size=16)
if parts:
    from instrument import PrefetchLoader

    loader = PrefetchLoader(loader, options.device)
trainer = lightning.Trainer(
    max_steps=options.steps, accelerator="auto", devices=1, logger=False, enable_progress_bar=False,
    num_sanity_val_steps=0, callbacks=[ModelCheckpoint(folder, save_last=True)], enable_model_summary=False,
)  # fmt: skip
last = folder / "last.ckpt"
resume = str(last) if parts and last.exists() else None
trainer.fit(Module(), loader, DataLoader(TensorDataset(inputs[:16], inputs[:16, :1]), 16), ckpt_path=resume)
