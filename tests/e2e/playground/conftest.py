"""One service of the shipped models for the page in a browser and for what the guides ask a service."""

from collections.abc import Iterator

import pytest
import yaml

from tests.support.service import save_tiny_model, service_config, serving

ENDLESS = "endless"


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service with the shipped models, and one with random weights, which never ends an answer by itself."""
    folder = tmp_path_factory.mktemp("service")
    file = service_config(
        folder, save_tiny_model(folder / "model", endless=True, max_position_embeddings=16384)
    )
    config = yaml.safe_load(file.read_text())
    models = config["applications"][0]["args"]["models"]
    models[ENDLESS] = {"path": str(folder / "model")}
    for name, directory in (("pasta-atlas", "pasta"), ("pasta-atlas-sequential", "twin")):
        models[name]["path"] = f"platform/pasta/data/atlas/models/{directory}"
    # How many Decoders there are is no matter here, and each imports torch.
    config["applications"][0]["args"]["engine"] = {"num_slots": 6, "slot_tokens": 8192}
    config["applications"][0]["args"]["decoder"]["num_replicas"] = 1
    file.write_text(yaml.safe_dump(config, sort_keys=False))  # the first model is the page's own choice
    with serving(file, folder / "log") as service:
        yield service.url
