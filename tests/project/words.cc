#include "parts.h"
#include <algorithm>
#include <regex>

std::map<std::string, int> count_words(const std::string &text) {
    std::map<std::string, int> counts;
    const std::regex word("[a-z]+", std::regex::icase);
    for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it) {
        std::string found = it->str();
        std::transform(found.begin(), found.end(), found.begin(), [](unsigned char c) { return std::tolower(c); });
        counts[found]++;
    }
    return counts;
}
