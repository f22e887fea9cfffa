//! Credentials of this command: where they are looked for, kept and renewed.

mod choose;
mod find;
mod input;
mod places;
mod renew;

use std::{env, ffi::OsString, io, path::PathBuf};

use ringtune_security::{CredentialsError, RootsError, TokenError, TrustError};

use crate::client::{ClientError, InvalidUrl};

pub use choose::{Choice, choose};
pub use find::{CredentialSource, Found, find};
pub use input::read_join_token;
pub use places::Places;
pub use renew::{is_due, keep, made_of, renew};

/// Credentials that are missing or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// None anywhere.
    #[error(
        "{url} wants to know who you are, and there are no credentials for it here; one of these is needed:\n  \
         a token from its administrator:  ringtune login {url}\n  \
         a folder with credentials:       --credentials DIR or RINGTUNE_CREDENTIALS\n  \
         an access token:                 RINGTUNE_TOKEN or RINGTUNE_TOKEN_FILE, with --ca FILE or RINGTUNE_CA\n  \
         on the coordinator's machine:    sudo ringtune …"
    )]
    None {
        /// Of which coordinator.
        url: String,
    },
    /// A folder that was named has none.
    #[error(
        "there are no credentials in {}: neither identity.pem and trust.pem, as `ringtune login` keeps them, \
         nor chain.pem, key.pem and ca.pem of another authority", folder.display()
    )]
    Empty {
        /// The folder.
        folder: PathBuf,
    },
    /// They cannot be read, written or used.
    #[error("the credentials in {}: {source}", folder.display())]
    Credentials {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        source: CredentialsError,
    },
    /// They cannot be used together.
    #[error("{of}: {source}")]
    Trust {
        /// Where they come from.
        of: String,
        /// What is wrong.
        source: TrustError,
    },
    /// A token cannot be read.
    #[error("{of}{source}{hint}")]
    Token {
        /// Where it comes from, and a colon; or empty.
        of: String,
        /// What is wrong; never quotes the token.
        source: TokenError,
        /// What else to try, on a line of its own; or empty.
        hint: &'static str,
    },
    /// A token without a CA: it names no roots.
    #[error(
        "an access token is sent only to the coordinator that it is for, and nothing here says which CA that has: \
         give --ca FILE or RINGTUNE_CA (an administrator gets the file by `ringtune ca show --pem`)"
    )]
    NoRoots,
    /// The CA's file cannot be used.
    #[error("the CA's certificates in {}: {source}", path.display())]
    Roots {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: RootsError,
    },
    /// There is no place for them.
    #[error("there is no place to keep credentials: set HOME or XDG_CONFIG_HOME to an absolute path")]
    NoHome,
    /// The file that names the coordinator of the last login.
    #[error("the coordinator that {} names: {source}; `ringtune login URL` writes it anew", path.display())]
    Default {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: InvalidUrl,
    },
    /// A file of this machine.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// For example "cannot read".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A certificate that the coordinator gave cannot be used.
    #[error("the coordinator gave a certificate that cannot be used: {0}")]
    Given(String),
    /// The coordinator gave none.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// What the environment says, beside the flags. Empty variables say nothing.
#[derive(Default, Clone)]
pub struct Environment {
    /// XDG_CONFIG_HOME.
    pub config_home: Option<OsString>,
    /// HOME.
    pub home: Option<OsString>,
    /// RINGTUNE_TOKEN: an access token.
    pub token: Option<String>,
    /// RINGTUNE_TOKEN_FILE: a file with one.
    pub token_file: Option<PathBuf>,
    /// RINGTUNE_JOIN: a join token.
    pub join: Option<String>,
    /// The coordinator's state folder, if one of this machine does not use the usual one.
    pub state_dir: Option<PathBuf>,
}

impl Environment {
    /// Of this process.
    pub fn read() -> Self {
        let value = |name| env::var_os(name).filter(|value| !value.is_empty());
        // What is no text is no token, and is refused as one.
        let text = |name| value(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            config_home: value("XDG_CONFIG_HOME"),
            home: value("HOME"),
            token: text("RINGTUNE_TOKEN"),
            token_file: value("RINGTUNE_TOKEN_FILE").map(PathBuf::from),
            join: text("RINGTUNE_JOIN"),
            state_dir: value("RINGTUNE__STORAGE__STATE_DIR").map(PathBuf::from),
        }
    }
}

/// What the command line and the environment say about credentials.
#[derive(Default, Clone)]
pub struct Given {
    /// `--credentials`.
    pub credentials: Option<PathBuf>,
    /// `--ca`.
    pub ca: Option<PathBuf>,
    /// The environment.
    pub environment: Environment,
}

#[cfg(test)]
mod tests;
