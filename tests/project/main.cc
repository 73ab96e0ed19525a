#include "parts.h"
#include <iostream>
#include <numeric>

int main() {
    double area = 0;
    for (const auto &shape : some_shapes(10))
        area += shape->area();
    std::cout << "area " << area << "\n";
    for (const auto &[word, count] : count_words("the quick fox and the slow dog and The end"))
        std::cout << word << " " << count << "\n";
    std::vector<int> numbers(100);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::cout << "sum " << sum_of_squares(numbers) << "\n";
    try {
        sum_of_squares({});
    } catch (const std::invalid_argument &error) {
        std::cout << error.what() << "\n";
    }
}
