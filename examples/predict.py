"""Classify images with an ONNX file of `vit export`: python predict.py photos.onnx image.jpg ..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
for path in sys.argv[2:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    (probabilities,) = session.run(["probabilities"], {"images": np.asarray(image)[None]})[0]
    print(f"{path}: {names[probabilities.argmax()]} {probabilities.max():.1%}")
