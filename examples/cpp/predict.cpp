// Classify a picture with an ONNX file of `vit export`:  predict photos.onnx picture.ppm
//
//   g++ -std=c++17 predict.cpp -I ORT/include -L ORT/lib -lonnxruntime -o predict
//
// ORT is a release of onnxruntime. PPM keeps the example free of a decoder: hand over the RGB bytes of yours.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: predict MODEL.onnx PICTURE.ppm\n"), 2;
  std::ifstream file(argv[2], std::ios::binary);
  std::string kind;
  int64_t width = 0, height = 0, most = 0;
  file >> kind >> width >> height >> most;
  if (kind != "P6" || most != 255 || width < 1 || height < 1 || width * height > 100'000'000)
    return std::fprintf(stderr, "%s is no binary PPM of 8 bits\n", argv[2]), 1;
  file.get();
  std::vector<uint8_t> pixels(3 * width * height);
  file.read(reinterpret_cast<char*>(pixels.data()), pixels.size());
  if (file.gcount() != static_cast<std::streamsize>(pixels.size()))
    return std::fprintf(stderr, "%s is cut off\n", argv[2]), 1;

  try {
    Ort::Env env;
    Ort::Session session(env, argv[1], Ort::SessionOptions{});
    const std::vector<int64_t> shape = {1, height, width, 3};
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto images = Ort::Value::CreateTensor<uint8_t>(memory, pixels.data(), pixels.size(), shape.data(), 4);
    const char *input = "images", *output = "probabilities";
    auto outputs = session.Run(Ort::RunOptions{}, &input, &images, 1, &output, 1);
    const float* first = outputs[0].GetTensorData<float>();
    const float* best = std::max_element(first, first + outputs[0].GetTensorTypeAndShapeInfo().GetElementCount());
    std::printf("class %td, probability %.6f\n", best - first, *best);
  } catch (const Ort::Exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
