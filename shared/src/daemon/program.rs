//! Output and exit of both daemons' programs.

use std::io::Write as _;

use clap::Command;
use serde::Serialize;

use crate::{
    config::{ConfigError, Loaded, written},
    documents::{self, CompletionArguments, DocumentArguments},
};

/// The exit code of what went well.
pub const DONE: u8 = 0;
/// The exit code of what failed while it worked.
pub const FAILED: u8 = 1;
/// The exit code of a command line or settings that cannot be used.
pub const USAGE: u8 = 2;

/// A daemon's program, by its name.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub &'static str);

/// What its words begin with: those of a part of `ringtune` that another program does, as its own do.
fn called(name: &'static str) -> &'static str {
    let called = std::env::args_os().next();
    if called.is_some_and(|called| called == "ringtune") { "error" } else { name }
}

impl Program {
    /// Says why it ends. A closed stderr is nobody's loss.
    pub fn fail(self, code: u8, text: &str) -> u8 {
        let _ = writeln!(std::io::stderr(), "{}: {text}", called(self.0));
        code
    }

    /// To stdout. Nobody misses what nobody reads.
    pub fn print(self, text: &[u8]) -> u8 {
        let mut stdout = std::io::stdout();
        match stdout.write_all(text).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                self.fail(FAILED, &error.to_string())
            }
            _ => DONE,
        }
    }

    /// `--print-config`: the settings in effect, each with where it was set.
    pub fn print_config<T: Serialize>(self, loaded: &Loaded<T>) -> u8 {
        match written(loaded) {
            Ok(text) => self.print(text.as_bytes()),
            Err(error) => self.fail(FAILED, &error.to_string()),
        }
    }

    /// `config check`: where the settings come from, or all that is wrong. `others`: what else keeps it from starting.
    pub fn checked<T>(self, loaded: Result<Loaded<T>, ConfigError>, others: Vec<String>) -> u8 {
        match loaded {
            Ok(loaded) if others.is_empty() => self.print(format!("{}\n", loaded.summary()).as_bytes()),
            loaded => {
                let problems = loaded.err().map(|error| error.to_string()).into_iter().chain(others);
                self.fail(USAGE, &problems.collect::<Vec<_>>().join("\n"))
            }
        }
    }

    /// `man`: the pages of a daemon's command line.
    pub fn man(self, command: Command, arguments: &DocumentArguments) -> u8 {
        match documents::man_pages(command, "8", &arguments.folder) {
            Ok(_) => DONE,
            Err(error) => self.fail(FAILED, &format!("{}: {error}", arguments.folder.display())),
        }
    }

    /// `completions`: what a shell needs of a command line.
    pub fn completions(self, command: Command, arguments: &CompletionArguments) -> u8 {
        self.print(&documents::completions(command, arguments.shell))
    }
}
