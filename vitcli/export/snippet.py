"""Python that runs an exported ONNX file on the pixels of `vit predict`, with onnxruntime, NumPy and Pillow.

Pillow and torch round a resize differently: one value in 400 is off by one, which moves probabilities by 1e-4
to 1e-3. So the code resizes as torch does, with weights of 16 bits, to the same pixels bit for bit.
"""

from vitcli.data.transforms import Preprocessing

# Weights of n pixels for each of m, from distances d; without antialias those at the border count again.
ANTIALIASED = """\
    d = abs(np.arange(n) + 0.5 - (np.arange(m)[:, None] + 0.5) * n / m) / max(n / m, 1)
    w = {kernel}
    return w / w.sum(axis=1, keepdims=True)"""
PLAIN = """\
    at, w = (np.arange(m) + 0.5) * n / m - 0.5, np.zeros((m, n))
    for k in {offsets}:
        d = abs(at - np.floor(at) - k)
        np.add.at(w, (range(m), np.clip(np.floor(at).astype(int) + k, 0, n - 1)), {kernel})
    return w"""
LINEAR = "np.maximum(1 - d, 0)"
CUBIC = "np.where(d <= 1, (1.5 * d - 2.5) * d * d + 1, (d < 2) * (((2.5 - d / 2) * d - 4) * d + 2))"
PLAIN_CUBIC = "np.where(d <= 1, (1.25 * d - 2.25) * d * d + 1, ((3.75 - 0.75 * d) * d - 6) * d + 3)"
WEIGHTS = {
    ("bilinear", True): ANTIALIASED.format(kernel=LINEAR),
    ("bicubic", True): ANTIALIASED.format(kernel=CUBIC),
    ("bilinear", False): PLAIN.format(offsets="(0, 1)", kernel=LINEAR),
    ("bicubic", False): PLAIN.format(offsets="(-1, 0, 1, 2)", kernel=PLAIN_CUBIC),
}
SNIPPET = """\
import json
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

def weights(n, m):  # of n pixels for each of m: {interpolation}
{weights}

def resized(image, size):  # rounded as in vit
    for axis in (1, 0):
        w = weights(image.shape[axis], size[axis])
        bits = min(22, int(np.log2(32767.5 / w.max())))
        w = np.trunc(w * 2**bits + np.copysign(0.5, w))
        image = np.moveaxis(np.tensordot(w, image, (1, axis)), 0, axis)
        image = np.clip(np.floor(image / 2**bits + 0.5), 0, 255)
    return image

session = onnxruntime.InferenceSession({path})
image = np.asarray(ImageOps.exif_transpose(Image.open("image.jpg")).convert("RGB"))
{size}
top, left = round((size[0] - {height}) / 2), round((size[1] - {width}) / 2)
image = resized(image, size)[top : top + {height}, left : left + {width}]
images = ((image / 255 - {mean}) / {std}).transpose(2, 0, 1)[None]
outputs = session.run(None, {{"images": images.astype(np.float32)}})[0][0]
{result}
"""
TEMPERATURE = """\
outputs /= json.loads(session.get_modelmeta().custom_metadata_map["belief"])["temperature"]
"""
CLASSES = """\
probabilities = np.exp(outputs - outputs.max()) / np.exp(outputs - outputs.max()).sum()
names = {names}
print(names[probabilities.argmax()], probabilities.max())"""
NUMBER = """\
target = json.loads(session.get_modelmeta().custom_metadata_map["target"])
print(target["name"], outputs[0] * target["std"] + target["mean"])"""
SEVERAL = """\
stored = session.get_modelmeta().custom_metadata_map
thresholds = json.loads(stored["several_labels"])["thresholds"]
for name, output, threshold in zip(json.loads(stored["class_names"]), outputs, thresholds):
    if 1 / (1 + np.exp(-output)) >= threshold:
        print(name)"""
STORED_NAMES = 'json.loads(session.get_modelmeta().custom_metadata_map["class_names"])'


def onnx_snippet(
    path: str,
    preprocessing: Preprocessing,
    *,
    has_classes: bool,
    has_names: bool,
    kind: str = "classes",
    has_temperature: bool = False,
) -> str:
    """Return code that prints the likeliest class of image.jpg and its probability, its number or features.

    Args:
        path: of the ONNX file.
        has_classes: the outputs are logits and not features.
        has_names: the file's metadata has the names of the classes.
        kind: of the outputs: "classes", "several" labels or "number"; the file's metadata has the thresholds
            or the scale.
        has_temperature: of the logits of classes, in the file's metadata.
    """
    height, width = preprocessing.image_size
    result = "print(outputs)"
    if kind == "number":
        result = NUMBER
    elif kind == "several":
        result = SEVERAL
    elif has_classes:
        result = CLASSES.format(names=STORED_NAMES if has_names else "range(len(outputs))")
        result = (TEMPERATURE if has_temperature else "") + result
    code = SNIPPET.format(
        interpolation=f"{preprocessing.interpolation}, {'' if preprocessing.antialias else 'no '}antialias",
        weights=WEIGHTS[preprocessing.interpolation, preprocessing.antialias],
        path=repr(path),
        size=_size(preprocessing),
        height=height,
        width=width,
        mean=list(preprocessing.mean),
        std=list(preprocessing.std),
        result=result,
    )
    return code if "json.loads" in code else code.removeprefix("import json\n")


def _size(preprocessing: Preprocessing) -> str:
    """Return the lines about height and width before the crop, as `Preprocessing` computes them."""
    if preprocessing.resize == "square":
        return f"size = {preprocessing.whole_size}"
    height, width = preprocessing.image_size
    terms = [f"{height} / image.shape[0]", f"{width} / image.shape[1]"]
    by_short_side = f"{preprocessing.short_side} / min(image.shape[:2])"
    scale = f"max({', '.join(terms)}, {'1' if preprocessing.resize == 'none' else by_short_side})"
    if preprocessing.resize == "short_side" and height == width:  # the largest of the three
        scale = by_short_side
    return f"""\
scale = {scale}
size = [max(crop, int(side * scale + 1e-6)) for crop, side in zip(({height}, {width}), image.shape)]"""
