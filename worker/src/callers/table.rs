//! The table: one row for each call and each page.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use ringtune_security::{Caller, Refused, Role};

/// Callers that may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Also those without a certificate.
    Everybody,
    /// Callers with any role.
    Known,
    /// Callers with one of these roles.
    Roles(&'static [Role]),
}

const WORKERS: Who = Who::Roles(&[Role::Worker]);
const WATCHERS: Who = Who::Roles(&[Role::Observer, Role::Admin]);

/// All calls of the gRPC port, by path.
pub const CALLS: [(&str, Who); 12] = [
    ("ringtune.v1.RingService/Exchange", WORKERS),
    ("ringtune.v1.RingService/FetchState", WORKERS),
    ("ringtune.v1.RingService/Invite", WORKERS),
    ("ringtune.v1.RingService/Measure", WORKERS),
    ("ringtune.v1.ProbeService/Identify", WORKERS),
    ("ringtune.v1.ProbeService/Push", WORKERS),
    ("ringtune.v1.ProbeService/Pull", WORKERS),
    ("ringtune.v1.ProbeService/DialBack", WORKERS),
    ("grpc.health.v1.Health/Check", Who::Everybody),
    ("grpc.health.v1.Health/Watch", Who::Everybody),
    ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Who::Known),
    ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Who::Known),
];

/// All pages of the HTTP port.
pub const PAGES: [(&str, Who); 2] = [("/healthz", Who::Everybody), ("/metrics", WATCHERS)];

/// Callers that learn of a missing page.
const NO_PAGE: Who = WATCHERS;

/// A row without a call, or a call without a row.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TableError {
    /// Nothing says who may make it.
    #[error("nothing says who may call {0}")]
    Missing(String),
    /// It is not served.
    #[error("the table has {0}, which is not served")]
    Unknown(String),
    /// The built-in descriptors are malformed.
    #[error("the descriptions of the services cannot be read: {0}")]
    Descriptors(#[from] prost::DecodeError),
}

/// Why a call is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It comes without a certificate.
    #[error(
        "{what} needs a certificate of this cluster, and the call came without one: get one with `ringtune login`, or with `ringtune-worker --join` for a worker"
    )]
    Anonymous {
        /// The call.
        what: String,
    },
    /// Its certificate is good for nothing.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Its role does not suffice.
    #[error("{what} needs the role {needed}; you are {caller}")]
    Role {
        /// The call.
        what: String,
        /// Roles, one of which is needed.
        needed: String,
        /// The caller.
        caller: String,
    },
}

impl Denied {
    /// Whether it is unknown who calls, and not what they may do.
    pub fn is_about_identity(&self) -> bool {
        !matches!(self, Self::Role { .. })
    }
}

/// Whether a call is let in. `what` is its name, for the reason.
pub(super) fn decide(caller: &Caller, what: &str, who: Who) -> Result<(), Denied> {
    let identity = match (caller, who) {
        // Health is everybody's business, whatever their certificate is good for.
        (Caller::Open, _) | (_, Who::Everybody) => return Ok(()),
        (Caller::Refused(reason), _) => return Err(reason.clone().into()),
        (Caller::Anonymous, _) => return Err(Denied::Anonymous { what: what.to_owned() }),
        (Caller::Known(_), Who::Known) => return Ok(()),
        (Caller::Known(identity), Who::Roles(_)) => identity,
    };
    let Who::Roles(roles) = who else { return Ok(()) };
    if roles.contains(&identity.role) {
        return Ok(());
    }
    let needed = roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(" or ");
    Err(Denied::Role { what: what.to_owned(), needed, caller: identity.to_string() })
}

/// The row of a call, by the path of its request. None: it is not served.
pub(super) fn call(path: &str) -> Option<Who> {
    let name = path.strip_prefix('/')?;
    CALLS.iter().find(|(call, _)| *call == name).map(|(_, who)| *who)
}

/// The row of a page, or of a missing page.
pub(super) fn page(path: &str) -> Who {
    PAGES.iter().find(|(page, _)| *page == path).map_or(NO_PAGE, |(_, who)| *who)
}

/// Checks that the table has exactly one row for each served call.
///
/// # Errors
/// Missing or superfluous rows.
pub fn check_calls(served: &[&str]) -> Result<(), TableError> {
    let mut calls = BTreeSet::new();
    for set in [
        ringtune_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        for file in FileDescriptorSet::decode(set)?.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                if served.contains(&name.as_str()) {
                    calls.extend(service.method.iter().map(|method| format!("{name}/{}", method.name())));
                }
            }
        }
    }
    for service in served {
        if !calls.iter().any(|call| call.starts_with(&format!("{service}/"))) {
            return Err(TableError::Missing((*service).to_owned()));
        }
    }
    compare(&CALLS, &calls.iter().map(String::as_str).collect::<Vec<_>>())
}

/// As above, for pages.
///
/// # Errors
/// Missing or superfluous rows.
pub fn check_pages(served: &[&str]) -> Result<(), TableError> {
    compare(&PAGES, served)
}

fn compare(table: &[(&str, Who)], served: &[&str]) -> Result<(), TableError> {
    if let Some(missing) = served.iter().find(|name| !table.iter().any(|(row, _)| row == *name)) {
        return Err(TableError::Missing((*missing).to_owned()));
    }
    match table.iter().find(|(row, _)| !served.contains(row)) {
        Some((unknown, _)) => Err(TableError::Unknown((*unknown).to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_security::{Cluster, Identity};

    use super::*;

    fn known(role: Role) -> Caller {
        let name = if role == Role::Worker { uuid::Uuid::nil().to_string() } else { "ada".to_owned() };
        Caller::Known(Identity {
            cluster: Cluster::from(uuid::Uuid::new_v4()),
            role,
            name,
            serial: "01".to_owned(),
        })
    }

    #[test]
    fn each_caller_gets_what_its_role_is_for() {
        let refused = Caller::Refused(Refused::OtherCluster {
            theirs: Cluster::from(uuid::Uuid::new_v4()),
            ours: Cluster::from(uuid::Uuid::new_v4()),
        });
        let callers = [
            Caller::Open,
            Caller::Anonymous,
            refused,
            known(Role::Worker),
            known(Role::Submitter),
            known(Role::Observer),
            known(Role::Admin),
        ];
        for (who, expected) in [
            (call("/ringtune.v1.RingService/Exchange").unwrap(), "yes who who yes no no no"),
            (call("/ringtune.v1.RingService/FetchState").unwrap(), "yes who who yes no no no"),
            (call("/grpc.health.v1.Health/Check").unwrap(), "yes yes yes yes yes yes yes"),
            (
                call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").unwrap(),
                "yes who who yes yes yes yes",
            ),
            (page("/healthz"), "yes yes yes yes yes yes yes"),
            (page("/metrics"), "yes who who no no yes yes"),
            (page("/other"), "yes who who no no yes yes"),
        ] {
            let answers = callers.each_ref().map(|caller| match decide(caller, "it", who) {
                Ok(()) => "yes",
                Err(denied) if denied.is_about_identity() => "who",
                Err(_) => "no",
            });
            assert_eq!(answers.join(" "), expected, "{who:?}");
        }
        let told = decide(&known(Role::Observer), "Exchange", WORKERS).unwrap_err().to_string();
        assert_eq!(told, "Exchange needs the role worker; you are observer ada");
        assert_eq!(call("/ringtune.v1.RingService/Other"), None);
        assert_eq!(call("ringtune.v1.RingService/Exchange"), None);
    }

    #[test]
    fn a_call_without_a_row_and_a_row_without_a_call_are_found() {
        let all = [
            "ringtune.v1.RingService",
            "ringtune.v1.ProbeService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        assert_eq!(check_calls(&all), Ok(()));
        let fewer = check_calls(&all[1..]).unwrap_err();
        assert!(matches!(&fewer, TableError::Unknown(call) if call.starts_with("ringtune.v1.RingService/")));
        let more = check_calls(&[&all[..], &["ringtune.v1.JobService"]].concat()).unwrap_err();
        assert!(matches!(&more, TableError::Missing(call) if call.starts_with("ringtune.v1.JobService/")));
        assert_eq!(check_calls(&["a.B"]), Err(TableError::Missing("a.B".to_owned())));
        assert_eq!(check_pages(&["/metrics"]), Err(TableError::Unknown("/healthz".to_owned())));
        let more = check_pages(&["/healthz", "/metrics", "/debug"]);
        assert_eq!(more, Err(TableError::Missing("/debug".to_owned())));
    }
}
