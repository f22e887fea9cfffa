//! What the help of commands says behind their options.

/// Behind the options of `ringtune`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  Train on this machine, with as many workers as the job's world_size:
      ringtune run dicoo.toml
  See the job with every default filled in, without running it:
      ringtune run --print-job dicoo.toml
  Keep a small cluster on this machine and give it jobs:
      ringtune up --workers 2
      ringtune submit --watch dicoo.toml
  Work with a coordinator elsewhere, with a token from its administrator:
      ringtune login https://head-node:7070
      ringtune submit dicoo.toml
      ringtune watch dicoo
      ringtune fetch dicoo -o results
  A job is named by its id, 4 or more digits of the id's beginning or end, its name, or `last`:
  the newest that is no verification.
  Draw pictures with what was learned, or continue a text:
      ringtune generate --help
      ringtune generate-text --help

Exit codes: 0 success, 1 the job failed, 2 wrong usage or not allowed, 3 the coordinator cannot be
reached, 4 a signal ended the command and the job goes on.
Data goes to stdout, progress to stderr. NO_COLOR is respected.";

/// Of `status`.
pub(crate) const STATUS: &str = "\
A job is QUEUED, PREPARING (its ranks fetch, load and encode), RUNNING, PAUSED, SUCCEEDED, FAILED
or CANCELLED; `reason` says why, `code` the same for programs. `epoch` counts the memberships of
its ring, `rank` is a line for each member, and `a step` says what a step takes on it.";

/// Of `pause` and `resume`.
pub(crate) const PAUSE: &str = "\
A job that runs ends its step, keeps the state after it, and lets its workers go. Once it is
resumed it waits for workers in its old place in the queue, and goes on from that state: the result
has the same bits as without the pause. Asking again changes nothing.

  ringtune pause last
  ringtune list --state paused
  ringtune resume dicoo";

/// Of `queue`.
pub(crate) const QUEUE: &str = "\
RANKS: those that a job has, of those that it wants; of one that waits, those that it needs, and
those that it wants where these are more. SINCE: how long it runs or waits. Jobs that wait stand in
their order: priority first, then who has used less of the cluster, then age. When one may start
follows from what the jobs that run have left to do, at their pace, and from what those before it
need.

  ringtune queue
  watch -n 10 ringtune queue
  ringtune queue --output json | jq 'select(.state == \"QUEUED\") | .waiting'";

/// Of `workers`.
pub(crate) const WORKERS: &str = "\
A worker is IDLE (connected and free), BUSY (in a ring) or LOST (its session broke; its ring may
go on); `draining`: it gets no new job; `resting`: it gets none for a while, as ranks of several
owners failed on it. THREADS are those of a rank, of all cores; GIB is memory; BF16, whether the
processor computes in it; ADDRESS is where ring neighbours dial. Labels are in --output json.";

/// Of `drain`.
pub(crate) const DRAIN: &str = "\
Prints what becomes of it: the worker takes no new job, and leaves the ring that it is in. Once
`ringtune workers` shows \"IDLE, draining\", it can be stopped; `ringtune undrain` takes it back.";
