import lightning
import torch


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

    def training_step(self, batch):
        loss = self.net(batch).pow(2).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


lightning.seed_everything(0)
data = torch.utils.data.DataLoader(torch.randn(2048, 64), batch_size=16)
lightning.Trainer(max_epochs=2, accelerator="cpu").fit(Net(), data)
