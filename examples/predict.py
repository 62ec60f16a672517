"""Answer images with an ONNX file of `vit export`: python predict.py photos.onnx image.jpg ..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def answer(session: onnxruntime.InferenceSession, image: Image.Image, *, topk: int) -> dict[str, float]:
    """Return the probabilities of the top classes, or of all labels that apply; or a number, or features."""
    _, height, width, _ = session.get_inputs()[0].shape
    image = ImageOps.exif_transpose(image).convert("RGB")
    if isinstance(height, int):  # of vit export --input pixels
        image = image.resize((width, height))
    kind, stored = session.get_outputs()[-1].name, session.get_modelmeta().custom_metadata_map
    answers = session.run([kind], {"images": np.asarray(image)[None]})[0][0]
    if kind == "number":
        return {json.loads(stored["target"])["name"]: float(answers[0])}
    if kind == "features":
        return {str(k): float(value) for k, value in enumerate(answers)}
    names = json.loads(stored.get("class_names", "null")) or range(len(answers))
    order = np.argsort(-answers, kind="stable")
    if "several_labels" in stored:
        thresholds = json.loads(stored["several_labels"])["thresholds"]
        return {names[k]: float(answers[k]) for k in order if answers[k] >= thresholds[k]}
    return {str(names[k]): float(answers[k]) for k in order[:topk]}


def main(file: str, *paths: str) -> int:
    session, num_failed = onnxruntime.InferenceSession(file), 0
    form = ".1%" if session.get_outputs()[-1].name == "probabilities" else ".4g"
    for path in paths:
        try:
            answers = answer(session, Image.open(path), topk=1)
            print(f"{path}: {', '.join(f'{name} {value:{form}}' for name, value in answers.items())}")
        except Exception as error:  # a damaged image may raise anything; the others are answered
            print(f"{path}: {error}", file=sys.stderr)
            num_failed += 1
    return num_failed > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 2 else __doc__)
