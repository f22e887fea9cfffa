//! Clusters, roles, and the identity that a certificate names.

use std::fmt::{self, Display};
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use uuid::Uuid;

/// The scheme of the URI that names an identity.
const SCHEME: &str = "ringtune://";
/// The most bytes that a name may have: an e-mail address fits, and a certificate stays small.
const LONGEST_NAME: usize = 100;
/// What is percent-encoded in a name: all but what RFC 3986 calls unreserved, and `@`, which people's names have.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'@');

/// A role, a name or an identity that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A word that is no role.
    #[error("{given:?} is not a role: allowed are worker, submitter, observer and admin")]
    Role {
        /// What was given, cut to 40 characters.
        given: String,
    },
    /// A text that is no cluster's id.
    #[error("{given:?} is not a cluster's id: it is a UUID such as 0193f2a4-5b6c-7d8e-9f00-112233445566")]
    Cluster {
        /// What was given, cut to 40 characters.
        given: String,
    },
    /// A name that cannot be one.
    #[error("{given:?} is not a name for the role {role}: {problem}")]
    Name {
        /// The role that it was for.
        role: Role,
        /// What was given, cut to 100 characters.
        given: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A URI that does not name an identity.
    #[error("{given:?} names no identity: it is written ringtune://CLUSTER/ROLE/NAME")]
    Uri {
        /// What was given, cut to 200 characters.
        given: String,
    },
    /// A certificate without such a URI.
    #[error("the certificate names no role: it has no subject alternative name ringtune://CLUSTER/ROLE/NAME")]
    Absent,
    /// A certificate with several.
    #[error("the certificate names {0} identities, and may name one")]
    Several(usize),
    /// A certificate that cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// One cluster: a coordinator and whoever joined it. Made with the coordinator's CA, and never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cluster(Uuid);

impl Cluster {
    /// A cluster that was not there before.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Its id.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for Cluster {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl Display for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(formatter)
    }
}

impl FromStr for Cluster {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        hyphenated(text).map(Self).ok_or_else(|| IdentityError::Cluster { given: cut(text, 40) })
    }
}

/// A UUID in its one usual form: lower case, with hyphens.
pub(crate) fn hyphenated(text: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(text).ok()?;
    (id.hyphenated().to_string() == text).then_some(id)
}

/// What somebody is in a cluster, which decides what they may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A worker's daemon.
    Worker,
    /// Somebody who has jobs of their own.
    Submitter,
    /// Somebody who only looks.
    Observer,
    /// Somebody who may do everything.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Worker, Self::Submitter, Self::Observer, Self::Admin];

    /// Its word, as in certificates, settings and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Submitter => "submitter",
            Self::Observer => "observer",
            Self::Admin => "admin",
        }
    }
}

impl Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let role = Self::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| IdentityError::Role { given: cut(text, 40) })
    }
}

/// Checks that a name can be one of this role: 1 to 100 bytes without control characters; a worker's is its id, a UUID.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(role: Role, name: &str) -> Result<(), IdentityError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.len() > LONGEST_NAME {
        "it has more than 100 bytes"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else if name.trim() != name {
        "it begins or ends with a space"
    } else if role == Role::Worker && hyphenated(name).is_none() {
        "a worker is named by its id, a UUID in lower case"
    } else {
        return Ok(());
    };
    Err(IdentityError::Name { role, given: cut(name, LONGEST_NAME), problem })
}

/// Whom a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// In which cluster.
    pub cluster: Cluster,
    /// As what.
    pub role: Role,
    /// The worker's id, or the person's name.
    pub name: String,
    /// The certificate's serial number, in lower-case hex without leading zeros.
    pub serial: String,
}

impl Identity {
    /// The URI that names it in a certificate: `ringtune://CLUSTER/ROLE/NAME`.
    pub fn uri(&self) -> String {
        uri(self.cluster, self.role, &self.name)
    }

    /// The id of a worker, None of anybody else.
    pub fn worker(&self) -> Option<Uuid> {
        if self.role == Role::Worker { hyphenated(&self.name) } else { None }
    }

    /// Reads what a certificate names.
    ///
    /// # Errors
    /// The URI names nobody.
    pub fn from_uri(text: &str, serial: &str) -> Result<Self, IdentityError> {
        let wrong = || IdentityError::Uri { given: cut(text, 200) };
        let rest = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let mut parts = rest.split('/');
        let (Some(cluster), Some(role), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let (cluster, role) = (cluster.parse()?, role.parse()?);
        if !has_whole_escapes(name) {
            return Err(wrong());
        }
        let name = percent_decode_str(name).decode_utf8().map_err(|_| wrong())?.into_owned();
        check_name(role, &name)?;
        Ok(Self { cluster, role, name, serial: serial.to_owned() })
    }
}

impl Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.role, self.name)
    }
}

/// Whether a URI is meant to name an identity, rightly or not.
pub(crate) fn is_ours(uri: &str) -> bool {
    uri.starts_with(SCHEME)
}

/// As [`Identity::uri`], before there is a certificate.
pub(crate) fn uri(cluster: Cluster, role: Role, name: &str) -> String {
    format!("{SCHEME}{cluster}/{role}/{}", utf8_percent_encode(name, ENCODED))
}

/// Whether every `%` has its two digits: the decoder would let others stand for themselves.
fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLUSTER: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";

    #[test]
    fn identities_are_written_as_uris() {
        let cluster = CLUSTER.parse().unwrap();
        let anna = Identity { cluster, role: Role::Submitter, name: "Anna Ä/1".into(), serial: "4f".into() };
        assert_eq!(anna.uri(), format!("ringtune://{CLUSTER}/submitter/Anna%20%C3%84%2F1"));
        assert_eq!(Identity::from_uri(&anna.uri(), "4f").unwrap(), anna);
        assert_eq!((anna.to_string().as_str(), anna.worker()), ("submitter Anna Ä/1", None));
        let mail = uri(cluster, Role::Admin, "anna@example.org");
        assert!(mail.ends_with("/admin/anna@example.org"), "{mail}");
        let id = Uuid::from_u128(7);
        let worker = Identity::from_uri(&uri(cluster, Role::Worker, &id.to_string()), "1").unwrap();
        assert_eq!(worker.worker(), Some(id));
    }

    #[test]
    fn what_names_nobody_is_refused_with_the_reason() {
        let long = "x".repeat(101);
        for (path, says) in [
            ("", "is written ringtune://"),
            ("worker", "is written ringtune://"),
            ("admin/a/b", "is written ringtune://"),
            ("admin/%4", "is written ringtune://"),
            ("admin/%zz", "is written ringtune://"),
            ("admin/%ff", "is written ringtune://"),
            ("root/a", "allowed are worker, submitter"),
            ("Admin/a", "allowed are worker, submitter"),
            ("admin/", "it is empty"),
            ("admin/a%0Ab", "control character"),
            ("admin/%20a", "a space"),
            ("worker/anna", "a UUID"),
            ("worker/6F9619FF-8B86-4D01-B42D-00CF4FC964FF", "a UUID"),
            (&format!("admin/{long}"), "100 bytes"),
        ] {
            let error = Identity::from_uri(&format!("ringtune://{CLUSTER}/{path}"), "1").unwrap_err();
            assert!(error.to_string().contains(says), "{path}: {error}");
        }
        for cluster in ["", "x", "6F9619FF-8B86-4D01-B42D-00CF4FC964FF", "6f9619ff8b864d01b42d00cf4fc964ff"] {
            let error = Identity::from_uri(&format!("ringtune://{cluster}/admin/a"), "1").unwrap_err();
            assert!(matches!(error, IdentityError::Cluster { .. }), "{cluster}: {error}");
        }
        assert!(matches!(Identity::from_uri("spiffe://x/y/z", "1"), Err(IdentityError::Uri { .. })));
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in "\\PC{1,25}", role in 1_usize..4) {
            let (cluster, role) = (CLUSTER.parse().unwrap(), Role::ALL[role]);
            prop_assume!(check_name(role, &name).is_ok());
            let written = uri(cluster, role, &name);
            prop_assert!(written.is_ascii());
            let read = Identity::from_uri(&written, "ab").unwrap();
            prop_assert_eq!(read, Identity { cluster, role, name, serial: "ab".into() });
        }

        #[test]
        fn no_text_breaks_the_reader(text in "(ringtune://)?[\\PC/%]{0,80}") {
            if let Ok(identity) = Identity::from_uri(&text, "1") {
                prop_assert!(check_name(identity.role, &identity.name).is_ok());
            }
        }
    }
}
