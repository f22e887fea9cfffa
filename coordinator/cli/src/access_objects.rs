//! What the commands about who may talk to the cluster print as JSON: one object a line.

use std::path::Path;

use prost_types::Timestamp;
use ringtune_proto::v1::{self, create_token_request::Kind};
use ringtune_security::{Identity, Role, TokenId};
use serde::Serialize;

use crate::{
    client::{CoordinatorUrl, Which},
    credentials::CredentialSource,
    output::time_text,
};

/// A role as people write it; "unknown" of a newer coordinator.
pub fn role_name(role: i32) -> &'static str {
    match v1::Role::try_from(role) {
        Ok(v1::Role::Worker) => Role::Worker.as_str(),
        Ok(v1::Role::Submitter) => Role::Submitter.as_str(),
        Ok(v1::Role::Observer) => Role::Observer.as_str(),
        Ok(v1::Role::Admin) => Role::Admin.as_str(),
        Ok(v1::Role::Unspecified) | Err(_) => "unknown",
    }
}

/// A role as calls have it.
pub fn wire_role(role: Role) -> v1::Role {
    match role {
        Role::Worker => v1::Role::Worker,
        Role::Submitter => v1::Role::Submitter,
        Role::Observer => v1::Role::Observer,
        Role::Admin => v1::Role::Admin,
    }
}

/// "join" or "access"; "unknown" of a newer coordinator.
pub fn kind_name(kind: i32) -> &'static str {
    match Kind::try_from(kind) {
        Ok(Kind::Join) => "join",
        Ok(Kind::Access) => "access",
        Ok(Kind::Unspecified) | Err(_) => "unknown",
    }
}

/// What `login` did, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct LoginObject {
    r#type: &'static str,
    coordinator: String,
    role: &'static str,
    name: String,
    cluster: String,
    serial: String,
    expire_time: String,
    credentials: String,
}

impl LoginObject {
    /// Of somebody whose certificate is in `folder`.
    pub fn new(url: &CoordinatorUrl, holder: &Identity, until: &Timestamp, folder: &Path) -> Self {
        Self {
            r#type: "login",
            coordinator: url.to_string(),
            role: holder.role.as_str(),
            name: holder.name.clone(),
            cluster: holder.cluster.to_string(),
            serial: holder.serial.clone(),
            expire_time: time_text(Some(until)),
            credentials: folder.display().to_string(),
        }
    }
}

/// What `logout` did, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct LogoutObject {
    r#type: &'static str,
    coordinator: String,
    was_logged_in: bool,
}

impl LogoutObject {
    /// At that coordinator.
    pub fn new(url: &CoordinatorUrl, was_logged_in: bool) -> Self {
        Self { r#type: "logout", coordinator: url.to_string(), was_logged_in }
    }
}

/// Who somebody is, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct IdentityObject {
    r#type: &'static str,
    coordinator: String,
    /// False: everybody may do everything.
    authenticated: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    role: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    expire_time: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    credentials: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageObject>,
}

/// What an owner has, and may have.
#[derive(Debug, Serialize)]
struct UsageObject {
    bytes: i64,
    /// 0: as many as those of all owners together.
    max_bytes: i64,
    files: i64,
    max_files: i64,
}

impl From<v1::OwnerUsage> for UsageObject {
    fn from(usage: v1::OwnerUsage) -> Self {
        let v1::OwnerUsage { bytes, max_bytes, files, max_files } = usage;
        Self { bytes, max_bytes, files, max_files }
    }
}

impl IdentityObject {
    /// As the coordinator says; `source`: where the credentials are.
    pub fn new(url: &CoordinatorUrl, answer: &v1::WhoAmIResponse, source: &str) -> Self {
        let authenticated = answer.role != v1::Role::Unspecified as i32;
        Self {
            r#type: "identity",
            coordinator: url.to_string(),
            authenticated,
            role: if authenticated { role_name(answer.role) } else { "" },
            name: answer.name.clone(),
            cluster: answer.cluster.clone(),
            expire_time: time_text(answer.expire_time.as_ref()),
            credentials: source.to_owned(),
            usage: answer.usage.map(UsageObject::from),
        }
    }
}

/// A token as a line of JSON.
#[derive(Debug, Serialize)]
pub struct TokenObject {
    r#type: &'static str,
    token_id: String,
    kind: &'static str,
    role: &'static str,
    name: String,
    creator: String,
    create_time: String,
    expire_time: String,
    /// Of tokens to join with.
    #[serde(skip_serializing_if = "Option::is_none")]
    uses_left: Option<i32>,
}

impl From<&v1::Token> for TokenObject {
    fn from(token: &v1::Token) -> Self {
        Self {
            r#type: "token",
            token_id: token.token_id.clone(),
            kind: kind_name(token.kind),
            role: role_name(token.role),
            name: token.name.clone(),
            creator: token.creator.clone(),
            create_time: time_text(token.create_time.as_ref()),
            expire_time: time_text(token.expire_time.as_ref()),
            uses_left: (token.kind() == Kind::Join).then_some(token.uses_left),
        }
    }
}

/// A new token as a line of JSON, with its secret. Nothing shows it but what is written of it.
#[derive(Serialize)]
pub struct CreatedTokenObject<'a> {
    #[serde(flatten)]
    token: TokenObject,
    secret: &'a str,
}

impl TokenObject {
    /// A new token, whose line to hand on is `secret`.
    pub fn created<'a>(token: &v1::Token, secret: &'a str) -> CreatedTokenObject<'a> {
        CreatedTokenObject { token: token.into(), secret }
    }
}

/// A token that was revoked, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct RevokedTokenObject {
    r#type: &'static str,
    token_id: String,
}

impl RevokedTokenObject {
    /// By its id.
    pub fn new(token: TokenId) -> Self {
        Self { r#type: "revoked_token", token_id: token.to_string() }
    }
}

/// A certificate as a line of JSON.
#[derive(Debug, Serialize)]
pub struct CertificateObject {
    r#type: &'static str,
    serial: String,
    role: &'static str,
    name: String,
    create_time: String,
    expire_time: String,
    /// Empty: it is not revoked.
    revoke_time: String,
    root: i32,
}

impl From<&v1::Certificate> for CertificateObject {
    fn from(certificate: &v1::Certificate) -> Self {
        let member = certificate.member.clone().unwrap_or_default();
        Self {
            r#type: "certificate",
            serial: certificate.serial.clone(),
            role: role_name(member.role),
            name: member.name,
            create_time: time_text(certificate.create_time.as_ref()),
            expire_time: time_text(certificate.expire_time.as_ref()),
            revoke_time: time_text(certificate.revoke_time.as_ref()),
            root: certificate.root,
        }
    }
}

/// What was revoked, as a line of JSON: a certificate, or all of a member.
#[derive(Debug, Serialize)]
pub struct RevokedObject {
    r#type: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    serial: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    role: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    /// How many certificates and access tokens that are.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<i32>,
}

impl RevokedObject {
    /// As the coordinator says.
    pub fn new(which: &Which, found: Option<i32>) -> Self {
        let (serial, role, name) = match which {
            Which::Serial(serial) => (serial.clone(), "", String::new()),
            Which::Member(member) => (String::new(), role_name(member.role), member.name.clone()),
        };
        Self { r#type: "revoked", serial, role, name, found }
    }
}

/// A certificate that was renewed, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct RenewedObject {
    r#type: &'static str,
    serial: String,
    expire_time: String,
    credentials: String,
}

impl RenewedObject {
    /// The new one.
    pub fn new(serial: &str, until: &Timestamp, source: &CredentialSource) -> Self {
        Self {
            r#type: "renewed",
            serial: serial.to_owned(),
            expire_time: time_text(Some(until)),
            credentials: source.to_string(),
        }
    }
}

/// The authority as a line of JSON.
#[derive(Debug, Serialize)]
pub struct AuthorityObject {
    r#type: &'static str,
    cluster: String,
    /// The oldest first; the last one signs.
    roots: Vec<RootObject>,
}

#[derive(Debug, Serialize)]
struct RootObject {
    number: i32,
    sha256: String,
    create_time: String,
    expire_time: String,
    certificates: i32,
}

impl From<&v1::Authority> for AuthorityObject {
    fn from(authority: &v1::Authority) -> Self {
        let root = |root: &v1::Root| RootObject {
            number: root.number,
            sha256: root.sha256.clone(),
            create_time: time_text(root.create_time.as_ref()),
            expire_time: time_text(root.expire_time.as_ref()),
            certificates: root.certificates,
        };
        Self {
            r#type: "authority",
            cluster: authority.cluster.clone(),
            roots: authority.roots.iter().map(root).collect(),
        }
    }
}

/// The roots themselves as a line of JSON.
#[derive(Debug, Serialize)]
pub struct RootsObject {
    r#type: &'static str,
    pem: String,
}

impl RootsObject {
    /// In PEM.
    pub fn new(pem: &str) -> Self {
        Self { r#type: "roots", pem: pem.to_owned() }
    }
}
