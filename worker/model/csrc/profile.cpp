// What libtorch's operators, and ours, take: a recording for `bench step`. libtorch calls back at the beginning and end
// of each operator (ATen/record_function.h) while a recording is on, and asks one flag otherwise.
//
// A recording is text, so that nothing but plain data crosses the boundary: a line an operator, its fields separated by
// tabs, in the order in which operators end. src/profile.rs reads it.
#include "shim.h"

#include <ATen/SequenceNumber.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>

namespace ringtune {

namespace {

// A step of Stable Diffusion 1.5 has about 20,000 operators: what does not fit is counted.
constexpr size_t kMostOperators = 1'000'000;

struct Recording {
    std::mutex mutex;
    std::string text;
    size_t operators = 0;
    size_t lost = 0;
    at::CallbackHandle handle = 0;
    bool on = false;
};

Recording &recording() {
    static Recording only;
    return only;
}

int64_t nanoseconds() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void append_shape(std::string &line, size_t element_bytes, at::IntArrayRef sizes) {
    line += std::to_string(element_bytes);
    char separator = ':';
    for (const int64_t size : sizes) {
        line += separator;
        line += std::to_string(size);
        separator = 'x';
    }
    if (sizes.empty()) {
        line += separator;
    }
    line += ' ';
}

// Tensors, and lists of numbers as shapes that take no memory; '-' for anything else, so that places can be counted.
void append_shapes(std::string &line, c10::ArrayRef<const c10::IValue> values) {
    for (const auto &value : values) {
        if (value.isTensor() && value.toTensor().defined()) {
            append_shape(line, value.toTensor().element_size(), value.toTensor().sizes());
        } else if (value.isTensorList()) {
            for (const at::Tensor &tensor : value.toTensorVector()) {
                append_shape(line, tensor.element_size(), tensor.sizes());
            }
        } else if (value.isIntList()) {
            append_shape(line, 0, value.toIntVector());
        } else {
            line += "- ";
        }
    }
}

struct Started final : at::ObserverContext {
    std::string inputs;
    int64_t sequence = 0;
    int64_t begin = 0;
};

// The number of a backward function's forward operator; of anything else the number that the next one will get.
int64_t sequence_of(const at::RecordFunction &function) {
    return function.scope() == at::RecordScope::BACKWARD_FUNCTION
               ? function.seqNr()
               : static_cast<int64_t>(at::sequence_number::peek());
}

// The inputs are there at the beginning alone.
std::unique_ptr<at::ObserverContext> started(const at::RecordFunction &function) {
    auto context = std::make_unique<Started>();
    append_shapes(context->inputs, function.inputs());
    context->sequence = sequence_of(function);
    context->begin = nanoseconds();
    return context;
}

// Called by destructors: an exception would end the program. What cannot be written down is lost.
void ended(const at::RecordFunction &function, at::ObserverContext *context) noexcept {
    const int64_t end = nanoseconds();
    const auto *start = static_cast<const Started *>(context);
    const bool written = start != nullptr && guarded(false, [&] {
        std::string line = std::to_string(static_cast<int>(function.scope())) + '\t' +
                           std::to_string(at::RecordFunction::currentThreadId()) + '\t' +
                           std::to_string(start->begin) + '\t' + std::to_string(end) + '\t' +
                           std::to_string(start->sequence) + '\t' + std::to_string(sequence_of(function)) + '\t' +
                           function.name() + '\t' + start->inputs + '\t';
        append_shapes(line, c10::ArrayRef<const c10::IValue>(function.outputs().data(), function.outputs().size()));
        line += '\n';
        Recording &all = recording();
        const std::lock_guard<std::mutex> lock(all.mutex);
        if (all.operators == kMostOperators) {
            return false;
        }
        all.operators += 1;
        all.text += line;
        return true;
    });
    if (!written) {
        Recording &all = recording();
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.lost += 1;
    }
}

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_profile_start() {
    return ringtune::guarded(false, [] {
        ringtune::Recording &all = ringtune::recording();
        TORCH_CHECK(!all.on, "a recording is on already");
        all.text.clear();
        all.operators = all.lost = 0;
        all.handle = at::addGlobalCallback(at::RecordFunctionCallback(ringtune::started, ringtune::ended)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                                        at::RecordScope::USER_SCOPE}));
        all.on = true;
        return true;
    });
}

char *ringtune_profile_stop() {
    return ringtune::guarded<char *>(nullptr, [] {
        ringtune::Recording &all = ringtune::recording();
        TORCH_CHECK(all.on, "no recording is on");
        at::removeCallback(all.handle);
        all.on = false;
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.text += "lost\t" + std::to_string(all.lost) + '\n';
        char *text = strdup(all.text.c_str());
        all.text = std::string();
        TORCH_CHECK(text != nullptr, "out of memory: no room for what was recorded");
        return text;
    });
}

void *ringtune_scope_begin(const char *name) {
    return ringtune::guarded<void *>(nullptr, [&]() -> void * {
        auto scope = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
        if (!scope->isActive()) {
            return nullptr;
        }
        scope->before(name, c10::ArrayRef<const c10::IValue>{});
        return scope.release();
    });
}

void ringtune_scope_end(void *scope) { delete static_cast<at::RecordFunction *>(scope); }

} // extern "C"
