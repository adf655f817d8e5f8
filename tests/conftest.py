"""The environment of all tests, set before anything heavy is imported: `pytest` by itself is `make test`."""

import os
import sys
from pathlib import Path

BIN = Path(sys.prefix) / "bin"

for name, value in {
    # Tests share their cores: threads that spin while they wait would make each other many times slower.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Compiled once, and kept with the environment.
    "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
}.items():
    os.environ.setdefault(name, value)

# DeepSpeed calls ninja by name, and tests call the environment's commands.
if str(BIN) not in os.environ.get("PATH", "").split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
