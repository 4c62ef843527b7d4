"""Values of a module's tensors from a file (``model.file``)."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedsim.common.errors import DataError, nearest
from fedsim.common.files import find_file, reading, require_regular
from fedsim.common.notes import note
from fedsim.learning.modules import is_number, real_shape

_MOST_SHOWN = 3  # greatest count of tensors that a note names


def fill_module(module: nn.Module, path: str, root: Path | None) -> None:
    """Copy the arrays of a ``.safetensors`` file into a module's tensors of the same names.

    A note for the user says which tensors the file has, and which it lacks; the latter keep their
    values.

    Args:
        module: the module, changed in place.
        path: path of the file, ``model.file``.
        root: the folder from which a relative path starts, ``data.root``; None for the working
            directory or ``$FEDSIM_DATA``.

    Raises:
        DataError: the file does not exist or has no tensors, the module lacks a tensor of the file,
            or an array does not fit its tensor or is not finite.
    """
    from safetensors.torch import load_file

    file = find_file(path, root)
    with reading(file, "model.file", "a .safetensors file"):
        arrays = load_file(require_regular(file))
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    arrays = {_name_within(tensors, name): array for name, array in arrays.items()}
    if not arrays:
        raise DataError(f"model.file: '{file}' has no tensors; the model has {', '.join(tensors)}")
    for name, array in arrays.items():
        if name not in tensors:
            names = f"{', '.join(tensors)}{nearest(name, tensors)}"
            shape = tuple(array.shape)
            raise DataError(
                f"model.file: '{file}' has {name!r} of shape {shape}, but the model has none; "
                f"it has {names}"
            )
        _fill(tensors[name], array, f"model.file: '{file}' has {name!r}")
    note(_describe_load(file, list(arrays), list(tensors)))


def _name_within(tensors: Mapping[str, Tensor], name: str) -> str:
    """Return the name that a tensor of a file has in a model.

    The names differ if the package peft has added an adapter to the layer: it then renames the
    layer's tensors from ``LAYER.NAME`` to ``LAYER.base_layer.NAME``.

    Args:
        tensors: name -> tensor of the model.
        name: name of the tensor in the file.
    """
    layer, _, own_name = name.rpartition(".")
    adapted = f"{layer}.base_layer.{own_name}"
    return adapted if name not in tensors and adapted in tensors else name


def _describe_load(file: Path, loaded: list[str], tensors: list[str]) -> str:
    """Return a sentence for the user on which of a model's tensors a file has, and which it lacks.

    Args:
        file: the file.
        loaded: names of the tensors in the file.
        tensors: names of all tensors of the model.
    """
    drawn = [name for name in tensors if name not in loaded]
    line = f"model.file '{file.name}' gives {len(loaded)} of the model's {len(tensors)} tensors"
    if not drawn:
        return line
    names = ", ".join(drawn[:_MOST_SHOWN])
    if len(drawn) > _MOST_SHOWN:
        names += f" and {len(drawn) - _MOST_SHOWN} more"
    return f"{line}; the file lacks {names}, whose values are drawn"


def _fill(tensor: Tensor, array: Tensor, where: str) -> None:
    """Copy an array of a file into a tensor in place.

    Args:
        tensor: the tensor of the module.
        array: the array of the file.
        where: text that names file and array, with which error messages begin.

    Raises:
        DataError: shape or dtype do not fit, or values are not finite.
    """
    # a complex number may be stored as two real ones
    has_two_per_number = tensor.is_complex() and tuple(array.shape) == real_shape(tensor)
    if has_two_per_number and array.is_floating_point():
        array = torch.view_as_complex(array.double().contiguous())
    if array.shape != tensor.shape:
        raise DataError(
            f"{where} of shape {tuple(array.shape)}, for which the model has one of shape "
            f"{real_shape(tensor)}"
        )
    is_of_other_kind = is_number(array) != is_number(tensor)  # only one has integers or bools
    loses_imaginary_part = array.is_complex() and not tensor.is_complex()
    if is_of_other_kind or loses_imaginary_part:
        raise DataError(f"{where} of {array.dtype}, for which the model has one of {tensor.dtype}")
    _refuse_not_finite(tensor, array, where)
    converted = array.to(tensor.dtype)
    too_large = int((torch.isfinite(array) & ~torch.isfinite(converted)).sum())
    if too_large:
        raise DataError(f"{where} with {too_large} numbers beyond the range of {tensor.dtype}")
    with torch.no_grad():
        tensor.copy_(converted)


def _refuse_not_finite(tensor: Tensor, array: Tensor, where: str) -> None:
    is_not_finite = ~torch.isfinite(array)
    if not bool(is_not_finite.any()):
        return
    current = tensor.to(array.dtype)
    is_unchanged = torch.equal(array.nan_to_num(1e30), current.nan_to_num(1e30))
    if not is_unchanged:  # a mask of -inf that the model already has is allowed
        raise DataError(
            f"{where} with {int(is_not_finite.sum())} of {array.numel()} numbers that are not "
            "finite (NaN or infinity); allowed are finite numbers"
        )
