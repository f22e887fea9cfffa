// Where the threads that compute run. libgomp can be told so by its environment alone, before main, and then it binds
// whatever thread comes first, from which all others of the program inherit; so each thread is put in its place here.

#include "shim.h"

#include <ATen/Parallel.h>

#include <omp.h>
#include <sched.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace ringtune {

namespace {

// Of the thread that computes: the processor of each thread of its team. Empty: wherever the system puts them.
thread_local std::vector<int> team_places;
// Where that thread was allowed before.
thread_local cpu_set_t anywhere;
// Of each thread of a team: where it was put, -1 for nowhere in particular.
thread_local int own_place = -1;

void allow(const cpu_set_t &processors) {
    if (sched_setaffinity(0, sizeof(processors), &processors) != 0) {
        throw std::system_error(errno, std::generic_category(), "sched_setaffinity");
    }
}

cpu_set_t set_of(const std::vector<int> &processors) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int processor : processors) {
        CPU_SET(processor, &set);
    }
    return set;
}

// Puts each thread of the team that the calling thread leads in its place, where it is not yet.
//
// The leader may run on all of the team's processors, of which the others leave one: libgomp ends threads that an
// operation does not need and starts new ones, which inherit where the leader may be.
void settle_team() {
    if (team_places.empty()) {
        return;
    }
    const std::vector<int> &places = team_places;
    const size_t count = static_cast<size_t>(at::get_num_threads());
    const bool fits = count <= places.size();
    // Before any thread is started that inherits it.
    const cpu_set_t all = fits ? set_of(places) : anywhere;
    allow(all);
    int error = 0;
#pragma omp parallel num_threads(static_cast<int>(count)) reduction(max : error)
    {
        const size_t thread = static_cast<size_t>(omp_get_thread_num());
        const int place = fits && thread > 0 ? places[thread] : -1;
        if (thread > 0 && place != own_place) {
            const cpu_set_t wanted = place >= 0 ? set_of({place}) : all;
            error = sched_setaffinity(0, sizeof(wanted), &wanted) == 0 ? 0 : errno;
            own_place = place;
        }
    }
    if (error != 0) {
        throw std::system_error(error, std::generic_category(), "sched_setaffinity");
    }
}

void place_team(const int *processors, size_t count) {
    if (count == 0) {
        return;
    }
    if (team_places.empty() && sched_getaffinity(0, sizeof(anywhere), &anywhere) != 0) {
        throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
    }
    for (size_t thread = 0; thread < count; ++thread) {
        if (processors[thread] < 0 || processors[thread] >= CPU_SETSIZE) {
            throw std::out_of_range("processor " + std::to_string(processors[thread]));
        }
    }
    team_places.assign(processors, processors + count);
    try {
        settle_team();
    } catch (...) {
        // Where it is not allowed, nothing is tried again.
        team_places.clear();
        throw;
    }
}

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_place_threads(const int *processors, size_t count) {
    return ringtune::guarded(false, [&] {
        ringtune::place_team(processors, count);
        return true;
    });
}

bool ringtune_settle_threads() {
    return ringtune::guarded(false, [] {
        ringtune::settle_team();
        return true;
    });
}

} // extern "C"
