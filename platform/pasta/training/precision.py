"""Whether a run computes in bfloat16."""

from pasta.training.config import OptimisationSection


def uses_bfloat16(recipe: OptimisationSection, *, use_gpu: bool) -> bool:
    """Whether the products of this run are in bfloat16 (autocast) on this machine.

    ``precision: auto`` takes it where the machine has instructions for it. A CPU without them takes dozens of times as
    long as in float32: 68 times, for a product of 512 × 256 and 256 × 1,536 with AVX2 alone.
    """
    if recipe.precision != "auto":
        return recipe.precision == "bf16"
    import torch  # late: a command that is told something wrong says so at once

    from pasta.engine.packing import onednn_packs

    if use_gpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return onednn_packs(torch.bfloat16)
