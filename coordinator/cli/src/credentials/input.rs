//! A token from whoever has it, without a trace in the list of processes or on the screen.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _},
    path::Path,
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::{
    AccessError, Environment,
    find::{LONGEST_TOKEN_FILE, read_bounded},
};

/// The person in front of the screen.
const TERMINAL: &str = "/dev/tty";

/// The text of a join token: from a file (`-`: stdin) if one is named, else from RINGTUNE_JOIN, else from whoever types it
/// at a terminal, else from stdin. Dropped in mid-wait, it leaves the terminal as it was.
///
/// # Errors
/// It cannot be read.
pub async fn read_join_token(file: Option<&Path>, environment: &Environment) -> Result<String, AccessError> {
    match (file, &environment.join) {
        (Some(path), _) if path != Path::new("-") => {
            let path = path.to_owned();
            blocking(move || read_bounded(&path)).await
        }
        (None, Some(text)) => Ok(text.clone()),
        (None, None) if io::stdin().is_terminal() => typed().await,
        _ => blocking(|| read_stdin().map_err(at("stdin"))).await,
    }
}

fn read_stdin() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(LONGEST_TOKEN_FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// A line from the terminal, which does not show it.
async fn typed() -> Result<String, AccessError> {
    let mut terminal = OpenOptions::new().read(true).write(true).open(TERMINAL).map_err(at(TERMINAL))?;
    let reader = terminal.try_clone().map_err(at(TERMINAL))?;
    terminal.write_all(b"Token: ").map_err(at(TERMINAL))?;
    let quiet = Quiet::make(terminal).map_err(at(TERMINAL))?;
    let line = blocking(move || {
        let mut line = String::new();
        let read = BufReader::new(reader.take(LONGEST_TOKEN_FILE)).read_line(&mut line);
        read.map(|_| line).map_err(at(TERMINAL))
    });
    let line = line.await;
    drop(quiet);
    line
}

/// A terminal that does not show what is typed, for as long as this lives.
struct Quiet {
    terminal: File,
    before: Termios,
}

impl Quiet {
    fn make(terminal: File) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut after = before.clone();
        after.local_modes.remove(LocalModes::ECHO);
        // The end of the line is shown, so that what follows stands on the next one.
        after.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&terminal, OptionalActions::Flush, &after)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // There is nobody to tell if the terminal is gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

fn at(path: &'static str) -> impl Fn(io::Error) -> AccessError {
    move |source| AccessError::File { doing: "cannot read", path: path.into(), source }
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, AccessError> + Send + 'static,
) -> Result<T, AccessError> {
    let died = |error| Err(at("the token")(io::Error::other(error)));
    tokio::task::spawn_blocking(read).await.unwrap_or_else(died)
}
