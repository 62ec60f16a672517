"""Python that runs an exported ONNX file on an image, with onnxruntime, NumPy and Pillow.

Pixels are resized and normalised within the file, so there is nothing that this code could do otherwise than
vit. Transparent images apart, which vit puts on white, the answers are those of `vit predict`.
"""

from vitcli.weights.production.program import ProgramForm

SNIPPET = """\
import json
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession({path})
image = ImageOps.exif_transpose(Image.open("image.jpg")).convert("RGB")
{resize}answers = session.run(["{output}"], {{"images": np.asarray(image)[None]}})[0][0]
{result}
"""
RESIZE = """\
image = image.resize(({width}, {height}))  # as you like; the file takes these pixels as they are
"""
CLASSES = """\
names = {names}
print(names[answers.argmax()], answers.max())"""
NUMBER = """\
print(json.loads(session.get_modelmeta().custom_metadata_map["target"])["name"], answers[0])"""
SEVERAL = """\
stored = session.get_modelmeta().custom_metadata_map
thresholds = json.loads(stored["several_labels"])["thresholds"]
for name, probability, threshold in zip(json.loads(stored["class_names"]), answers, thresholds):
    if probability >= threshold:
        print(name)"""
STORED_NAMES = 'json.loads(session.get_modelmeta().custom_metadata_map["class_names"])'


def onnx_snippet(path: str, form: ProgramForm, *, has_names: bool) -> str:
    """Return code that prints the top class of image.jpg and its probability, its number or features.

    Args:
        path: of the ONNX file.
        has_names: the file's metadata has the names of the classes.
    """
    output, result = {
        "classes": (
            "probabilities",
            CLASSES.format(names=STORED_NAMES if has_names else "range(len(answers))"),
        ),
        "several": ("probabilities", SEVERAL),
        "number": ("number", NUMBER),
        "features": ("features", "print(answers)"),
    }[form.kind]
    height, width = form.preprocessing.image_size
    resize = "" if form.input == "images" else RESIZE.format(height=height, width=width)
    code = SNIPPET.format(path=repr(path), resize=resize, output=output, result=result)
    return code if "json.loads" in code else code.removeprefix("import json\n")
