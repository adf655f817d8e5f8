"""A watch over what waits for a device: on a CPU, where nothing does, or on ``meta``, where nothing can be read."""

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pasta.engine import transfer

#: Of a tensor: what returns a value of it, or something whose size follows from its values.
_READS = frozenset(
    {"item", "tolist", "numpy", "cpu", "__array__", "__contains__"}
    | {"__bool__", "__int__", "__float__", "__complex__", "__index__"}
    | {"nonzero", "argwhere", "bincount", "unique", "unique_consecutive", "masked_select"}
    | {"equal", "allclose", "is_nonzero"}
)
#: The same of operators, as Python calls in torch's and transformers' own code end in.
_OPERATORS = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "bincount"}
    | {"_unique", "_unique2", "unique_dim", "unique_consecutive"}
)


class NoWaiting:
    """Within it, what waits for a device fails, but for a step's one copy back (``transfer.copy_back``), which is
    counted. ``answer`` tells, if it is given, what so many numbers are that it returns."""

    def __init__(self, answer=None):
        self.answer, self.num_copies, self.may_wait = answer, 0, False

    def __enter__(self):
        self._stack = ExitStack()
        copy_back = transfer.copy_back

        def counted(packed):
            self.num_copies += 1
            if self.answer is not None:
                return np.array(self.answer(len(packed)), dtype=np.int64)
            self.may_wait = True
            try:
                return copy_back(packed)
            finally:
                self.may_wait = False

        for entered in (patch.object(transfer, "copy_back", counted), _Calls(self), _Operators(self)):
            self._stack.enter_context(entered)
        return self

    def __exit__(self, *error):
        self._stack.close()


def _is_copied(index):
    """Whether an index has to be copied to the device first."""
    index = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, list | np.ndarray) for i in index)


class _Calls(TorchFunctionMode):
    """Sees calls by Python, also those that end in no operator on a CPU."""

    def __init__(self, watch):
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if not self._watch.may_wait:
            assert name not in _READS, name
            assert name != "new_tensor", "new_tensor copies without pinned memory"
            if name in ("tensor", "as_tensor"):
                assert "device" not in kwargs, f"{name}(device=...) copies without pinned memory"
            if name in ("__getitem__", "__setitem__"):
                assert not _is_copied(args[1]), "an index that is copied to the device"
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """Sees operators."""

    def __init__(self, watch):
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if not self._watch.may_wait:
            name = func.overloadpacket.__name__
            assert name not in _OPERATORS, name
            if name.startswith("index") and isinstance(args[1], list | tuple):
                assert all(i is None or i.dtype != torch.bool for i in args[1]), "index by a mask"
            if name in ("_to_copy", "copy_"):
                source = args[1] if name == "copy_" else args[0]
                blocking = not (
                    (kwargs or {}).get("non_blocking") or (name == "copy_" and args[2:] == (True,))
                )
                there, here = found.device, source.device
                assert there == here or (there.type != "cpu" and not blocking), f"{name}: {here} to {there}"
        return found
