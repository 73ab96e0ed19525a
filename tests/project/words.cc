#include "parts.h"
#include <cctype>
#include <utility>

std::map<std::string, int> count_words(const std::string &text) {
    std::map<std::string, int> counts;
    std::string word;
    for (char c : text + " ") {
        if (std::isalpha(static_cast<unsigned char>(c)))
            word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        else if (!word.empty())
            counts[std::exchange(word, "")]++;
    }
    return counts;
}
