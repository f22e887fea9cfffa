//! `ringtune completions` and `ringtune man`.

use std::io::Write as _;

use clap::CommandFactory as _;
use ringtune_shared::documents::{self, CompletionArguments, DocumentArguments};

use crate::{arguments::Arguments, error::Error};

/// Prints what a shell reads.
pub(super) fn completions(arguments: &CompletionArguments) -> Result<(), Error> {
    std::io::stdout().write_all(&documents::completions(Arguments::command(), arguments.shell))?;
    Ok(())
}

/// Writes the man pages.
pub(super) fn man(arguments: &DocumentArguments) -> Result<(), Error> {
    documents::man_pages(Arguments::command(), "1", &arguments.folder)?;
    Ok(())
}
