"""Any model of torchvision or transformers as a case of the GPU table, by its name.

    torchvision:efficientnet_b0@16          a batch of 16 images of 224 by 224
    torchvision:inception_v3@8x299          of 299 by 299
    transformers:SegformerModel@4           the configuration's own defaults, images of its own size
    transformers:BertModel@8x384            sequences of 384 tokens

Weights are random, as everywhere in the table.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from bench.gpu_cases import CASES, Case
from ridgeline.errors import OptionError, did_you_mean

# networks that nobody tuned for; SuperPoint, SuperGlue and a block of Llama are cases of the first table
SECOND_TABLE = (
    "torchvision:efficientnet_b0@16", "torchvision:convnext_tiny@16", "transformers:SegformerModel@4x512",
    "torchvision:densenet121@16", "torchvision:swin_t@16", "torchvision:regnet_y_800mf@16",
    "torchvision:shufflenet_v2_x1_0@16", "torchvision:inception_v3@8x299",
    "torchvision:deeplabv3_mobilenet_v3_large@4x512", "torchvision:vgg16_bn@8",
    "transformers:T5EncoderModel@8x128", "transformers:WhisperEncoder@1", "unet_block", "llama_block_s512",
    "superpoint_like", "superglue_like",
)  # fmt: skip
FORM = re.compile(r"(torchvision|transformers):(\w+)@(\d+)(?:x(\d+))?")
IMAGE, WORDS = 224, 128


def case_named(name: str) -> Case:
    """A case of the table, or a model of one of the two packages."""
    if name in CASES:
        return CASES[name]
    found = FORM.fullmatch(name)
    if found is None:
        raise OptionError(
            f"there is no case {name!r}",
            want="a case of the table, torchvision:NAME@BATCH[xSIZE] or transformers:CLASS@BATCH[xSIZE]",
            help=did_you_mean(name, [*CASES, *SECOND_TABLE]),
        )
    package, model, batch, size = found[1], found[2], int(found[3]), int(found[4] or 0)
    make = _of_torchvision if package == "torchvision" else _of_transformers
    return make(name, model, batch, size)


class FirstTensor(nn.Module):
    """The first tensor of what a model returns, whatever holds it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        made: Any = self.model(*args)
        while not isinstance(made, Tensor):
            made = next(iter(made.values())) if hasattr(made, "values") else made[0]
        return made


def _of_torchvision(name: str, model: str, batch: int, size: int) -> Case:
    def make() -> nn.Module:
        builder = import_module("torchvision").models.get_model_builder(model)
        # a detector would fetch the weights of its backbone
        names = [n for n in ("weights", "weights_backbone") if n in inspect.signature(builder).parameters]
        return FirstTensor(_with_statistics(builder(**dict.fromkeys(names))))

    side = size or IMAGE
    return Case(name, make, lambda: {"x": torch.randn(batch, 3, side, side)}, is_image=True)


def _with_statistics(model: nn.Module) -> nn.Module:
    """Untrained running statistics make activations explode; untrained scales of branches, 1e-6, underflow in
    float16, where trained ones are near one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        if name.endswith("layer_scale"):
            nn.init.uniform_(parameter, 0.1, 1.0)
    return model


class Encoder(nn.Module):
    """A transformers model called with one input, by its name, for the first thing it makes."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.model(**{self.name: x}, return_dict=False)[0]
        return made


def _of_transformers(name: str, model: str, batch: int, size: int) -> Case:
    transformers = import_module("transformers")
    kind = getattr(transformers, model, None) or _inner_class(transformers, model)
    config = kind.config_class()
    main = str(kind.main_input_name)
    make_input = _INPUTS.get(main)
    if make_input is None:
        raise OptionError(f"no inputs are known for {model!r}", got=main, want=", ".join(_INPUTS))

    def inputs() -> dict[str, Tensor]:
        return {"x": make_input(config, batch, size)}

    is_image = main == "pixel_values"
    return Case(name, lambda: Encoder(kind(config), main), inputs, is_image=is_image)


def _inner_class(transformers: Any, model: str) -> Any:
    """A class that the package has without exporting it, such as WhisperEncoder."""
    family = re.sub(r"(?<!^)(?=[A-Z])", "_", model).split("_")[0].lower()
    try:
        module = import_module(f"{transformers.__name__}.models.{family}.modeling_{family}")
        return getattr(module, model)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"transformers has no model {model!r}", got=str(error)) from error


def _words(config: Any, batch: int, size: int) -> Tensor:
    return torch.randint(0, config.vocab_size, (batch, size or WORDS))


def _pixels(config: Any, batch: int, size: int) -> Tensor:
    given = size or getattr(config, "image_size", IMAGE)
    height, width = given if isinstance(given, (list, tuple)) else (given, given)
    return torch.randn(batch, getattr(config, "num_channels", 3), height, width)


def _features(config: Any, batch: int, size: int) -> Tensor:
    return torch.randn(batch, config.num_mel_bins, size or 2 * config.max_source_positions)


def _samples(config: Any, batch: int, size: int) -> Tensor:
    return torch.randn(batch, size or 16000)


_INPUTS: dict[str, Callable[[Any, int, int], Tensor]] = {
    "input_ids": _words, "pixel_values": _pixels, "input_features": _features, "input_values": _samples,
}  # fmt: skip
