#include "parts.h"
#include <cmath>

namespace {
struct Circle : Shape {
    double radius;
    explicit Circle(double r) : radius(r) {}
    double area() const override { return std::acos(-1.0) * radius * radius; }
    std::string name() const override { return "circle"; }
};
struct Square : Shape {
    double side;
    explicit Square(double s) : side(s) {}
    double area() const override { return side * side; }
    std::string name() const override { return "square"; }
};
} // namespace

std::vector<std::unique_ptr<Shape>> some_shapes(int count) {
    std::vector<std::unique_ptr<Shape>> shapes;
    for (int i = 0; i < count; i++) {
        if (i % 2)
            shapes.push_back(std::make_unique<Circle>(i));
        else
            shapes.push_back(std::make_unique<Square>(i));
    }
    return shapes;
}
