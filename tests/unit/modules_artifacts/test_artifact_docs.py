"""The modules' documentation says what their argument specs say."""

from __future__ import annotations

from types import ModuleType

import pytest
import yaml
from ansible_collections.sparkmesh.cluster.plugins.modules import image_identity, model_store


@pytest.mark.parametrize("module", [image_identity, model_store])
def test_documentation_matches_the_argument_spec(module: ModuleType) -> None:
    options = yaml.safe_load(module.DOCUMENTATION)["options"]
    plain = {
        name: {key: value for key, value in each.items() if key != "description"} for name, each in options.items()
    }
    spec = {name: {key: value for key, value in each.items() if key != "no_log"} for name, each in module.SPEC.items()}
    assert plain == spec
    assert yaml.safe_load(module.EXAMPLES) and yaml.safe_load(module.RETURN)
