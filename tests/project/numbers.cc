#include "parts.h"
#include <numeric>

long sum_of_squares(const std::vector<int> &numbers) {
    if (numbers.empty())
        throw std::invalid_argument("no numbers");
    return std::accumulate(numbers.begin(), numbers.end(), 0L, [](long sum, int n) { return sum + long(n) * n; });
}
