// What the parts of the project offer to each other.
#pragma once
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
    virtual std::string name() const = 0;
};

std::vector<std::unique_ptr<Shape>> some_shapes(int count);
std::map<std::string, int> count_words(const std::string &text);
long sum_of_squares(const std::vector<int> &numbers);
