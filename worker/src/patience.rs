//! Configures how OpenMP's threads wait for each other.

use std::{convert::Infallible, io, os::unix::process::CommandExt as _, process::Command};

/// Variables that decide how libgomp's threads wait, and the first one's value if the user set none: they look 4,000 times,
/// for about 0.2 ms, and then sleep.
const CHOICES: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];
const LOOKS: &str = "4000";

/// Starts this process once more, under the same id and with the same arguments, unless it was told how its OpenMP
/// threads wait.
///
/// By default they look 300,000 times, which is ruinous where several workers, or a worker and anything else, share the
/// cores; where they sleep at once, each of a step's thousand short waits costs the system's time to wake them. Measured
/// on 2 cores with AMX, seconds a step, alone and with a second worker on the same cores: 300,000 times 1.4 and 10.8,
/// 4,000 times 1.42 and 2.82, none 1.49 and 2.72. libgomp reads its environment before `main`, so setting it here would be
/// too late. What the user chose is left alone.
///
/// # Errors
/// The process goes on as it was: this program cannot be started again (its file is gone, say).
pub fn ensure() -> io::Result<()> {
    if chosen(std::env::var_os) {
        return Ok(());
    }
    restart().map(|never| match never {})
}

fn chosen<Value>(variable: impl Fn(&'static str) -> Option<Value>) -> bool {
    CHOICES.iter().any(|name| variable(name).is_some())
}

fn restart() -> io::Result<Infallible> {
    let program = std::env::current_exe()?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    Err(command.args(arguments).env(CHOICES[0], LOOKS).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_chose_is_left_alone() {
        for name in CHOICES {
            assert!(chosen(|asked| (asked == name).then_some(())));
        }
        assert!(!chosen(|_| None::<()>));
    }
}
