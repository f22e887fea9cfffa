//! Finds the credentials to use.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use ringtune_security::{
    AccessToken, Cluster, CredentialPaths, Credentials, CredentialsError, FileError, Revoked, Roots, Trust,
};

use uuid::Uuid;

use super::{AccessError, Environment, Given, Places};
use crate::client::CoordinatorUrl;

/// Where a coordinator keeps its state if nobody says otherwise.
const STATE_DIR: &str = "/var/lib/ringtune";
/// A token is a line of 80 bytes.
pub(super) const LONGEST_TOKEN_FILE: u64 = 4096;

/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// A folder that was named, with what a coordinator's own authority gave.
    Folder(PathBuf),
    /// A folder that was named, with certificates of another authority.
    Elsewhere(PathBuf),
    /// RINGTUNE_TOKEN or RINGTUNE_TOKEN_FILE.
    Token(&'static str),
    /// `ringtune login`.
    Login(PathBuf),
    /// The coordinator's state folder on this machine.
    Admin(PathBuf),
}

impl CredentialSource {
    /// The folder whose certificate this command renews. The coordinator renews its admin's itself, and another
    /// authority has ways of its own.
    pub fn renewed_in(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) | Self::Login(folder) => Some(folder),
            Self::Elsewhere(_) | Self::Token(_) | Self::Admin(_) => None,
        }
    }
}

impl fmt::Display for CredentialSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) | Self::Elsewhere(folder) | Self::Login(folder) | Self::Admin(folder) => {
                write!(formatter, "{}", folder.display())
            }
            Self::Token(variable) => formatter.write_str(variable),
        }
    }
}

/// Credentials for a coordinator with TLS.
#[derive(Debug, Clone)]
pub struct Found {
    /// The roots, and the certificate if there is one.
    pub trust: Trust,
    /// The token that goes with each call instead of a certificate.
    pub token: Option<AccessToken>,
    /// Where they come from.
    pub source: CredentialSource,
}

impl Found {
    fn of(credentials: Credentials, source: CredentialSource) -> Result<Self, AccessError> {
        let of = |error| AccessError::Trust { of: format!("the credentials in {source}"), source: error };
        Ok(Self { trust: Trust::of(credentials).map_err(of)?, token: None, source })
    }
}

/// Looks for credentials, the most specific first. Blocks.
///
/// # Errors
/// There are none, or the first that there are cannot be used.
pub fn find(url: &CoordinatorUrl, given: &Given) -> Result<Found, AccessError> {
    // 1. What was named.
    if let Some(folder) = &given.credentials {
        return named(folder);
    }
    let environment = &given.environment;
    let login = Places::of(environment).map(|places| places.login(url));
    // 2. A token.
    if let Some((variable, text)) = token(environment)? {
        return with_token(variable, &text, given.ca.as_deref(), login.ok().as_deref());
    }
    // 3. The login.
    if let Ok(folder) = login
        && let Some(credentials) = load(&folder)?
    {
        return Found::of(credentials, CredentialSource::Login(folder));
    }
    // 4. The coordinator's own machine.
    admin(environment)?.ok_or_else(|| AccessError::None { url: url.to_string() })
}

/// The credentials of this machine's administrator, where there are some and this user may read them. Blocks.
///
/// # Errors
/// They cannot be used.
pub(super) fn admin(environment: &Environment) -> Result<Option<Found>, AccessError> {
    let state = environment.state_dir.clone().unwrap_or_else(|| STATE_DIR.into());
    let folder = state.join("admin");
    match load(&folder) {
        Ok(None) => Ok(None),
        Ok(Some(credentials)) => Found::of(credentials, CredentialSource::Admin(folder)).map(Some),
        Err(AccessError::Credentials { source, .. }) if is_forbidden(&source) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_forbidden(error: &CredentialsError) -> bool {
    matches!(error, CredentialsError::File(FileError::Io { cause, .. })
        if cause.kind() == io::ErrorKind::PermissionDenied)
}

fn load(folder: &Path) -> Result<Option<Credentials>, AccessError> {
    Credentials::load(folder).map_err(|source| AccessError::Credentials { folder: folder.to_owned(), source })
}

fn named(folder: &Path) -> Result<Found, AccessError> {
    if let Some(credentials) = load(folder)? {
        return Found::of(credentials, CredentialSource::Folder(folder.to_owned()));
    }
    let file = |name| folder.join(name);
    let paths = CredentialPaths { chain: file("chain.pem"), key: file("key.pem"), ca: file("ca.pem") };
    if ![&paths.chain, &paths.key, &paths.ca].iter().any(|path| path.exists()) {
        return Err(AccessError::Empty { folder: folder.to_owned() });
    }
    let credentials = Credentials::read(&paths)
        .map_err(|source| AccessError::Credentials { folder: folder.to_owned(), source })?;
    Found::of(credentials, CredentialSource::Elsewhere(folder.to_owned()))
}

/// The access token's text, and the variable that it comes from.
fn token(environment: &Environment) -> Result<Option<(&'static str, String)>, AccessError> {
    if let Some(text) = &environment.token {
        return Ok(Some(("RINGTUNE_TOKEN", text.clone())));
    }
    let Some(path) = &environment.token_file else { return Ok(None) };
    Ok(Some(("RINGTUNE_TOKEN_FILE", read_bounded(path)?)))
}

/// The text of a small file. Blocks.
pub(super) fn read_bounded(path: &Path) -> Result<String, AccessError> {
    let read = || {
        let mut text = String::new();
        let file = fs::File::open(path)?;
        io::Read::read_to_string(&mut io::Read::take(file, LONGEST_TOKEN_FILE), &mut text)?;
        Ok(text)
    };
    read().map_err(|source| AccessError::File { doing: "cannot read", path: path.to_owned(), source })
}

fn with_token(
    variable: &'static str,
    text: &str,
    ca: Option<&Path>,
    login: Option<&Path>,
) -> Result<Found, AccessError> {
    let token = text.parse().map_err(|source| AccessError::Token {
        of: format!("{variable}: "),
        source,
        hint: "\n  a join token goes to `ringtune login`",
    })?;
    let roots = match ca {
        Some(path) => {
            let text = fs::read_to_string(path);
            let failed = |source| AccessError::File { doing: "cannot read", path: path.to_owned(), source };
            let roots = Roots::from_pem(&text.map_err(failed)?);
            roots.map_err(|source| AccessError::Roots { path: path.to_owned(), source })?
        }
        None => match login.map(load).transpose()?.flatten() {
            Some(credentials) => credentials.roots().clone(),
            None => return Err(AccessError::NoRoots),
        },
    };
    // Roots from elsewhere name no cluster: then the coordinator's certificate has to be for the URL's host, and no
    // certificate has the name of a cluster that was made up here.
    let cluster = roots.cluster().unwrap_or_else(|| Cluster::from(Uuid::new_v4()));
    let trust = Trust::new(cluster, None, roots, Revoked::default());
    let trust = trust.map_err(|source| AccessError::Trust { of: variable.to_owned(), source })?;
    Ok(Found { trust, token: Some(token), source: CredentialSource::Token(variable) })
}
