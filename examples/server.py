"""Answer images over HTTP: MODEL=photos.onnx uvicorn server:app --port 8000 (pip install fastapi uvicorn).

curl --data-binary @image.jpg http://127.0.0.1:8000/predict
"""

import io
import json
import os

import numpy as np
import onnxruntime
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image, ImageOps
from starlette.requests import ClientDisconnect

MOST_BYTES, MOST_PIXELS = 10_000_000, 25_000_000
app, session = FastAPI(), onnxruntime.InferenceSession(os.environ["MODEL"])
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])


def decoded(body: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(body))
    if image.width * image.height > MOST_PIXELS:  # by the header: nothing is decoded yet
        raise HTTPException(413, f"more than {MOST_PIXELS} pixels")
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def classify(body: bytes) -> dict[str, float]:
    try:
        image_HWC = decoded(body)
    except HTTPException:
        raise
    except Exception as error:  # a damaged image may raise anything
        raise HTTPException(400, "no image that can be decoded") from error
    (probabilities,) = session.run(["probabilities"], {"images": image_HWC[None]})[0]
    return {names[k]: float(probabilities[k]) for k in probabilities.argsort()[::-1][:5]}


@app.get("/healthz")
def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/predict")
async def predict(request: Request) -> dict[str, float]:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"more than {MOST_BYTES} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the request ended too early") from error
    return await run_in_threadpool(classify, bytes(body))
