"""The same ONNX files read by OpenVINO and by onnxruntime: top classes, outputs and speed.

python benchmarks/openvino_agreement.py FILE.onnx DATA[:SPLIT] ...
"""

import sys
import time
from pathlib import Path

import numpy as np

from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.weights.production.session import SESSIONS


def main() -> None:
    file, *names = sys.argv[1:]
    runtimes = [kind(Path(file), num_threads=2) for kind in SESSIONS.values()]
    num_images = num_same = 0
    largest, times = 0.0, [[], []]
    for name in names:
        data, _, split_name = name.partition(":")
        split = DataSet(data).open(split_name or "validation")
        for row in range(len(split)):
            image_1HWC = loader.read_example(split, row)[0][None]
            if not isinstance(runtimes[0].input_shape[1], str):
                height, width = runtimes[0].input_shape[1:3]
                ys, xs = (np.arange(n) * image_1HWC.shape[at] // n for at, n in ((1, height), (2, width)))
                image_1HWC = np.ascontiguousarray(image_1HWC[:, ys][:, :, xs])
            outputs = []
            for place, runtime in enumerate(runtimes):
                runtime.run(runtime.output_name, image_1HWC)  # threads of the other may still spin
                began_at = time.perf_counter()
                outputs.append(runtime.run(runtime.output_name, image_1HWC)[0])
                times[place].append(time.perf_counter() - began_at)
            num_images += 1
            num_same += int(outputs[0].argmax() == outputs[1].argmax())
            largest = max(largest, float(np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[0]).max()))
    medians = {name: f"{1000 * np.median(of):.1f} ms" for name, of in zip(SESSIONS, times, strict=True)}
    print(f"{file}: {num_same} of {num_images} the same; outputs within {largest:.2g}; {medians}")


if __name__ == "__main__":
    main()
