import logging
import time

import hydra
import torch

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.optimizer.lr)
    begin = time.perf_counter()
    for _ in range(config.steps):
        model(torch.randn(64, 256)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    log.info("throughput: %.1f samples/s", 64 * config.steps / (time.perf_counter() - begin))
    torch.save(model.state_dict(), hydra.core.hydra_config.HydraConfig.get().runtime.output_dir + "/model.pt")


if __name__ == "__main__":
    main()
