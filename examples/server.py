"""Answer images over HTTP: MODEL=photos.onnx uvicorn server:app --port 8000 (pip install fastapi uvicorn).

curl --data-binary @image.jpg http://127.0.0.1:8000/predict

Needs predict.py beside it. Whatever is sent, it takes less than 1.2 GB: see the limits below. Photographs of
more than 5 megapixels are refused: make them smaller before they are sent, or raise the limit.
"""

import asyncio
import io
import os
import sys

import onnxruntime
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image
from predict import answer
from starlette.requests import ClientDisconnect

MOST_BYTES, MOST_PIXELS = 10_000_000, 5_000_000  # each million of pixels takes 50 MB while it is answered
MOST_SCANS = 100  # of a progressive JPEG: each is decoded for all pixels
BODY_WITHIN_S = 30.0
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")  # others, such as EPS, start programs or have old decoders
app, at_work, in_memory = FastAPI(), asyncio.Semaphore(2), asyncio.Semaphore(32)
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena = False  # it would keep the memory of the largest image for ever
options.log_severity_level = 4  # what the network refuses is answered and not logged
if "MODEL" not in os.environ:
    sys.exit("name the file of vit export: MODEL=photos.onnx uvicorn server:app")
session = onnxruntime.InferenceSession(os.environ["MODEL"], options)


def classify(body: bytes) -> dict[str, float]:
    try:
        image = Image.open(io.BytesIO(body), formats=FORMATS)
        # By the header: nothing is decoded yet. In a JPEG these bytes are the start of a scan.
        num_scans = body.count(b"\xff\xda") if body.startswith(b"\xff\xd8") else 1
        if image.width * image.height <= MOST_PIXELS and num_scans <= MOST_SCANS:
            return answer(session, image, topk=5)
    except Exception as error:  # a damaged image may raise anything, and a network refuse an odd size
        raise HTTPException(400, "no image that can be decoded and answered") from error
    raise HTTPException(413, f"more than {MOST_PIXELS} pixels, or {MOST_SCANS} scans")


async def body_of(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, f"more than {MOST_BYTES} bytes")
    except TimeoutError as error:
        raise HTTPException(408, f"the body took more than {BODY_WITHIN_S:g} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the request ended too early") from error
    return bytes(body)


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/predict")
async def predict(request: Request) -> dict[str, float]:
    if in_memory.locked():
        raise HTTPException(503, "too many requests at once", {"Retry-After": "1"})
    async with in_memory:
        body = await body_of(request)
        async with at_work:
            return await run_in_threadpool(classify, body)
