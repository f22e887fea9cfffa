//! `ringtune-worker`: see `ringtune-worker --help`.

use std::io::Write as _;

use ringtune_worker::{
    arguments::{self, Arguments},
    patience, program,
};
use ringtune_worker_daemon::LIBTORCH;

fn main() {
    program::main(run)
}

fn run() -> u8 {
    let arguments: Arguments = arguments::parse();
    if arguments.command.is_none()
        && let Err(code) = program::prepare(&arguments.daemon)
    {
        return code;
    }
    if let Err(error) = patience::ensure() {
        // Only slower on busy cores.
        let _ = writeln!(std::io::stderr(), "ringtune-worker: set GOMP_SPINCOUNT=4000 by hand: {error}");
    }
    program::run(arguments, LIBTORCH)
}
