#include <torch/torch.h>
#include <chrono>
#include <iostream>

int main() {
  auto model = torch::nn::Linear(64, 8);
  for (int i = 0; i < 50; i++) model(torch::randn({16, 64})).sum().backward();
  auto x = torch::randn({256, 256});
  auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 400; i++) x = torch::tanh(torch::mm(x, x));
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << "throughput: " << 400 / took.count() << " samples/s" << std::endl;
}
