//! A token on its way into this process, and out of everybody's sight.
//!
//! A token on the command line stands in the list of processes, which every user of a machine can read. So a program that
//! finds one there starts itself once more without it: the token waits in an anonymous file that only this process holds,
//! and goes with its first reading. One in the environment goes the same way, because children inherit the environment,
//! and crash reports show it. What stays is the moment until then: `--join-file` has none.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    fmt, fs,
    fs::File,
    io::{self, Read, Write as _},
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    path::Path,
    process::Command,
    str::FromStr,
};

use ringtune_security::{JoinToken, Role};
use rustix::fs::{MemfdFlags, memfd_create};

use super::TokenTextError;

/// Environment variable of a token, instead of `--join`.
pub const VARIABLE: &str = "RINGTUNE_JOIN";
const FLAG: &str = "--join";
const FILE_FLAG: &str = "--join-file";
/// Files of this process by their numbers.
const OWN_FILES: &str = "/proc/self/fd/";
/// Far more than a token and what is around it.
const LONGEST: u64 = 4096;

/// A token as it was given. Nothing shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

impl fmt::Debug for TokenText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenText")
    }
}

impl FromStr for TokenText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// Takes a token out of the command line and the environment: with one there this process begins again without it, under
/// the same id, and this returns only if that is not possible. `flag`: what `--join` says; `file`: whether there is a
/// `--join-file`. Call it before anything else.
///
/// # Errors
/// The token cannot be hidden, and so is not used.
pub fn hide(flag: Option<&TokenText>, file: bool) -> Result<(), TokenTextError> {
    let variable = std::env::var_os(VARIABLE).filter(|text| !text.is_empty());
    // The flags say it more plainly than the variable.
    let token = match (flag, file) {
        (Some(flag), _) => OsString::from(flag.0.as_str()),
        (None, true) => return Ok(()),
        (None, false) => match variable {
            Some(variable) => variable,
            None => return Ok(()),
        },
    };
    restart(&token).map(|never| match never {}).map_err(TokenTextError::Hide)
}

fn restart(token: &OsStr) -> io::Result<Infallible> {
    // 1. Inherited by what this process becomes: so not closed by then.
    let mut file = File::from(memfd_create(c"ringtune-join", MemfdFlags::empty())?);
    file.write_all(token.as_encoded_bytes())?;
    // 2. The same program, with everything else that it was given.
    let mut command = Command::new(std::env::current_exe()?);
    let mut arguments = std::env::args_os();
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let place = format!("{OWN_FILES}{}", file.as_raw_fd());
    command.args([FILE_FLAG, &place]).args(without_token(arguments)).env_remove(VARIABLE);
    Err(command.exec())
}

fn without_token(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut kept, mut is_token) = (Vec::new(), false);
    for argument in arguments {
        let joined = argument.as_encoded_bytes().starts_with(b"--join=");
        if !is_token && !joined && argument != FLAG {
            kept.push(argument.clone());
        }
        is_token = !is_token && argument == FLAG;
    }
    kept
}

/// Reads a token from a file; `-` is stdin, which is `taken` where a parent holds it as a lifeline. Blocks.
///
/// # Errors
/// It cannot be read, is too long, or stdin is taken.
pub fn read(path: &Path, taken: bool) -> Result<TokenText, TokenTextError> {
    let failed = |source| TokenTextError::File { path: path.to_owned(), source };
    let text = if path == Path::new("-") {
        if taken {
            return Err(TokenTextError::Lifeline);
        }
        bounded(io::stdin().lock())
    } else {
        File::open(path).and_then(bounded)
    };
    let text = text.map_err(failed)?;
    if path.starts_with(OWN_FILES) {
        // It stays open as long as this process lives, so nothing is to be left in it. A pipe is empty by now.
        let _ = fs::OpenOptions::new().write(true).truncate(true).open(path);
    }
    if text.len() as u64 > LONGEST {
        return Err(TokenTextError::Long { path: path.to_owned() });
    }
    Ok(TokenText(text))
}

fn bounded(file: impl Read) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    Ok(text)
}

impl TokenText {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.trim().is_empty()
    }

    /// The token of a worker.
    ///
    /// # Errors
    /// It is none, not whole, or for another role.
    pub fn parse(&self) -> Result<JoinToken, TokenTextError> {
        let token: JoinToken = self.0.trim().parse()?;
        if token.role != Role::Worker {
            return Err(TokenTextError::Role(token.role));
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use ringtune_security::Cluster;

    use super::*;

    fn token(role: Role) -> String {
        JoinToken::new(role, [7; 32], Cluster::from(uuid::Uuid::new_v4())).unwrap().reveal()
    }

    #[test]
    fn a_token_leaves_the_arguments_and_nothing_else_does() {
        let without = |line: &str| {
            let kept = without_token(line.split_whitespace().map(OsString::from));
            kept.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(without("--join secret --threads 2"), "--threads 2");
        assert_eq!(without("--threads 2 --join=secret"), "--threads 2");
        assert_eq!(without("--threads 2 --join secret"), "--threads 2");
        assert_eq!(without("--state-dir /join --listen 1.2.3.4:5"), "--state-dir /join --listen 1.2.3.4:5");
        assert_eq!(without("--join --join"), "");
    }

    #[test]
    fn a_file_is_read_and_what_is_no_token_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let text = token(Role::Worker);
        fs::write(&file, format!("  {text}\n")).unwrap();
        let read_back = read(&file, true).unwrap();
        assert_eq!(read_back.parse().unwrap().reveal(), text);
        assert!(!format!("{read_back:?}").contains(&text[5..20]));
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert!(matches!(read(&file, false), Err(TokenTextError::Long { .. })));
        assert!(matches!(read(&folder.path().join("none"), false), Err(TokenTextError::File { .. })));
        assert!(matches!(read(Path::new("-"), true), Err(TokenTextError::Lifeline)));
        let cut = &text[..text.len() - 3];
        let error = TokenText(cut.to_owned()).parse().unwrap_err().to_string();
        assert!(error.contains("cut") && !error.contains(&cut[5..20]), "{error}");
        let error = TokenText(token(Role::Observer)).parse().unwrap_err().to_string();
        assert!(error.contains("role observer") && error.contains("--role worker"), "{error}");
    }
}
