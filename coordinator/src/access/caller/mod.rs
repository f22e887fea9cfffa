//! Who makes a call, and whether they may.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ringtune_security::{Caller as Seen, Cluster, Role, TokenId};
use ringtune_shared::ids::WorkerId;
use ringtune_shared::job::HIGHEST_PRIORITY;

use super::table::{Row, Who};
use crate::core::{REQUEST_OWNER, Time};

/// Who makes a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody is asked who they are: everybody may do everything.
    Open,
    /// Neither certificate nor token.
    Anonymous,
    /// Whoever a certificate or a token names.
    Known(Known),
    /// The holder of a certificate that nothing is done for; the text says why.
    Refused(String),
}

/// Somebody who is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The cluster.
    pub cluster: Cluster,
    /// What they may do.
    pub role: Role,
    /// Of a worker its UUID, of a person the owner of what they submit.
    pub name: String,
    /// How they showed it.
    pub proof: Proof,
}

/// How somebody showed who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// With the certificate of this serial number.
    Certificate(String),
    /// With an access token.
    Token(TokenId, Time),
}

impl Caller {
    /// The caller on the other side of a connection, as far as the connection shows it.
    pub fn seen(seen: &Seen) -> Self {
        match seen {
            Seen::Open => Self::Open,
            Seen::Anonymous => Self::Anonymous,
            Seen::Refused(reason) => Self::Refused(reason.to_string()),
            Seen::Known(identity) => Self::Known(Known {
                cluster: identity.cluster,
                role: identity.role,
                name: identity.name.clone(),
                proof: Proof::Certificate(identity.serial.clone()),
            }),
        }
    }

    /// Whoever it is, if that is known.
    pub fn known(&self) -> Option<&Known> {
        match self {
            Self::Known(known) => Some(known),
            Self::Open | Self::Anonymous | Self::Refused(_) => None,
        }
    }
}

impl Display for Known {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.role, self.name)
    }
}

/// Why a call is not made: a metric's label, and the kind of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody knows who calls.
    NoIdentity,
    /// The certificate was revoked or names no role.
    Certificate,
    /// The token is none of this cluster's, or is good no more.
    Token,
    /// From this address came too many wrong tokens.
    TooManyTokens,
    /// Whoever calls makes more calls a second than it may.
    TooManyCalls,
    /// The role does not suffice.
    Role,
    /// A worker speaks for another one, or of a job in which it has no place.
    Worker,
    /// Somebody would submit in another one's name.
    Owner,
    /// There is no such method.
    Method,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::NoIdentity,
        Self::Certificate,
        Self::Token,
        Self::TooManyTokens,
        Self::TooManyCalls,
        Self::Role,
        Self::Worker,
        Self::Owner,
        Self::Method,
    ];

    /// A metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoIdentity => "no_identity",
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::TooManyTokens => "too_many_tokens",
            Self::TooManyCalls => "too_many_calls",
            Self::Role => "role",
            Self::Worker => "worker",
            Self::Owner => "owner",
            Self::Method => "method",
        }
    }
}

/// A call that is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Denied {
    /// Of what kind it is.
    pub reason: Reason,
    /// For people: what is missing, and how to get it.
    pub text: String,
    /// When another try may help, if only time is missing.
    pub retry_after: Option<Duration>,
}

impl Denied {
    /// With that text.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), retry_after: None }
    }

    /// As above, with a time after which another try may help.
    pub fn until_later(reason: Reason, text: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(reason, text) }
    }
}

/// How somebody gets an identity.
const HOW: &str = "get a certificate with `ringtune login` (a worker: with --join TOKEN), or send an access token as \
                   \"authorization: Bearer TOKEN\"; whoever runs the coordinator makes tokens with `ringtune token create`";

/// Whether a caller may call a method. `row`: none where there is no such method.
///
/// # Errors
/// Why not.
pub fn decide(row: Option<&Row>, caller: &Caller) -> Result<(), Denied> {
    let known = match caller {
        Caller::Open => return Ok(()),
        Caller::Refused(reason) => return Err(Denied::new(Reason::Certificate, reason)),
        Caller::Anonymous if row.is_some_and(|row| row.who == Who::Everybody) => return Ok(()),
        Caller::Anonymous => {
            let what = row.map_or("this call", Row::name);
            return Err(Denied::new(Reason::NoIdentity, format!("{what} is not for everybody: {HOW}")));
        }
        Caller::Known(known) => known,
    };
    let Some(row) = row else {
        return Err(Denied::new(Reason::Method, "there is no such method here"));
    };
    if row.who == Who::Certified && !matches!(known.proof, Proof::Certificate(_)) {
        let text = format!("{} needs a certificate; you are {known}, by an access token", row.name());
        return Err(Denied::new(Reason::Role, text));
    }
    match row.who {
        Who::Roles(roles) if !roles.contains(&known.role) => {
            let text = format!("{} needs the role {}; you are {known}", row.name(), either(roles));
            Err(Denied::new(Reason::Role, text))
        }
        _ => Ok(()),
    }
}

/// "submitter, observer or admin"
fn either(roles: &[Role]) -> String {
    let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// What a handler knows of a call that may be made.
#[derive(Debug, Clone)]
pub struct Call {
    caller: Caller,
    address: SocketAddr,
    /// The method reaches a submitter's own jobs, and those that a worker has a place in.
    own: bool,
    /// What the audit log says that it was about.
    subject: Arc<OnceLock<String>>,
}

/// Which jobs a caller reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach<'a> {
    /// All.
    All,
    /// Those of this owner.
    Owner(&'a str),
    /// Those in which this worker has a place.
    Worker(WorkerId),
    /// None.
    Nothing,
}

impl Call {
    /// A call of `caller` from `address` to the method of `row`.
    pub fn new(caller: Caller, address: SocketAddr, row: Option<&Row>) -> Self {
        Self { caller, address, own: row.is_some_and(|row| row.own), subject: Arc::default() }
    }

    /// A call of nobody, which reaches nothing.
    pub fn nobodys() -> Self {
        Self::new(Caller::Anonymous, SocketAddr::from(([0, 0, 0, 0], 0)), None)
    }

    /// From where it comes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The caller.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Which jobs the call may reach.
    pub fn reach(&self) -> Reach<'_> {
        match &self.caller {
            Caller::Open => Reach::All,
            Caller::Known(known) => match known.role {
                Role::Submitter if self.own => Reach::Owner(&known.name),
                Role::Worker if self.own => known.name.parse().map_or(Reach::Nothing, Reach::Worker),
                Role::Admin | Role::Observer => Reach::All,
                Role::Submitter | Role::Worker => Reach::Nothing,
            },
            Caller::Anonymous | Caller::Refused(_) => Reach::Nothing,
        }
    }

    /// The owner to whose jobs the call is confined, if it is.
    pub fn only_of(&self) -> Option<&str> {
        match self.reach() {
            Reach::All => None,
            Reach::Owner(name) => Some(name),
            // Nobody has jobs without a name on a port that asks for names.
            Reach::Worker(_) | Reach::Nothing => Some("\0"),
        }
    }

    /// Whether a job of this owner is within reach.
    pub fn sees(&self, owner: &str) -> bool {
        self.only_of().is_none_or(|only| only == owner)
    }

    /// The owner that the caller asks about, and whether that is the caller. `given`: what the request says.
    ///
    /// # Errors
    /// It is somebody else, and the caller sees only their own jobs.
    pub fn asks_about(&self, given: String) -> Result<(String, bool), Denied> {
        let Caller::Known(known) = &self.caller else { return Ok((given, true)) };
        if given.is_empty() || given == known.name {
            return Ok((known.name.clone(), true));
        }
        match self.sees(&given) {
            true => Ok((given, false)),
            false => {
                let text =
                    format!("owner: got {given:?}; allowed: {:?}, or nothing; you are {known}", known.name);
                Err(Denied::new(Reason::Owner, text))
            }
        }
    }

    /// The highest priority that the caller may give a job. `most`: what a submitter may give.
    pub fn highest_priority(&self, most: u32) -> u32 {
        match &self.caller {
            Caller::Known(known) if known.role != Role::Admin => most,
            _ => HIGHEST_PRIORITY,
        }
    }

    /// Whose a new job is, where `given` is what the request says.
    ///
    /// # Errors
    /// It is to be somebody else's, and the caller is no admin.
    pub fn owner(&self, given: String) -> Result<String, Denied> {
        let Caller::Known(known) = &self.caller else { return Ok(given) };
        if given.is_empty() {
            return Ok(known.name.clone());
        }
        if given != known.name && known.role != Role::Admin {
            let text =
                format!("queue.owner: got {given:?}; allowed: {:?}, or nothing; you are {known}", known.name);
            return Err(Denied::new(Reason::Owner, text));
        }
        Ok(given)
    }

    /// Whether a new job may have this priority. `most`: what a submitter may give.
    ///
    /// # Errors
    /// It is more, and the caller is no admin.
    pub fn check_priority(&self, given: u32, most: u32) -> Result<(), Denied> {
        match &self.caller {
            Caller::Known(known) if given > self.highest_priority(most) => {
                let text = format!(
                    "queue.priority: got {given}; allowed: 0 to {most}, by the coordinator's setting \
                     queue.submitter_priority; you are {known}"
                );
                Err(Denied::new(Reason::Role, text))
            }
            _ => Ok(()),
        }
    }

    /// A client's name for a request, told apart from those of other clients.
    pub fn own_request(&self, id: String) -> String {
        match &self.caller {
            Caller::Known(known) if !id.is_empty() => {
                format!("{}/{}{REQUEST_OWNER}{id}", known.role, known.name)
            }
            _ => id,
        }
    }

    /// What the call is about: for the audit log.
    pub fn about(&self, subject: impl Display) {
        // The first word counts.
        let _ = self.subject.set(subject.to_string());
    }

    /// What the handler said that it was about.
    pub fn subject(&self) -> Option<&str> {
        self.subject.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
