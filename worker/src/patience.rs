//! How OpenMP's threads wait for each other.

use std::{convert::Infallible, io, os::unix::process::CommandExt as _, process::Command};

/// What decides how libgomp's threads wait, and the value of the first that makes them sleep.
const CHOICES: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];
const SLEEP: &str = "0";

/// Starts this process once more, under the same id and with the same arguments, unless it was told how its OpenMP
/// threads wait.
///
/// By default they spin, which is ruinous where several workers, or a worker and anything else, share the cores, and
/// gains nothing where they do not (measured: 2.0 s a step either way on an idle machine, 2 to 5 s against 6 to 29 s
/// on a busy one). libgomp reads its environment before `main`, so setting it here would be too late. What the user
/// chose is left alone.
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
    Err(command.args(arguments).env(CHOICES[0], SLEEP).exec())
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
