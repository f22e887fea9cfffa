//! AccessService, and the layer through which every call goes.

mod layer;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_proto::convert::{FieldError, unsigned};
use ringtune_proto::v1::{
    self, access_service_server::AccessService, create_token_request::Kind, revoke_certificate_request,
};
use ringtune_security::{Peer, Role, TokenId};
use tonic::{Request, Response, Status};

use super::status::{self, FailedRequest};
use super::{Api, outbound};
use crate::access::{AuthorityView, Call, Certified, Denied, Joining, NewToken, Which, WhoIsIt};
use crate::core::{OwnerLimits, Time, Usage};
use crate::store::access::{CertificateRecord, TokenKind, TokenRecord};
pub(super) use layer::AccessLayer;

#[derive(Clone)]
pub(super) struct AccessCalls(pub(super) Arc<Api>);

/// Who makes a call: the layer has put it there.
pub(super) fn call_of<T>(request: &Request<T>) -> Call {
    request.extensions().get::<Call>().cloned().unwrap_or_else(Call::nobodys)
}

impl Api {
    /// Counts a call that a handler does not make.
    pub(super) fn deny(&self, denied: Denied) -> FailedRequest {
        self.access.count(&denied);
        status::denied(&denied).into()
    }
}

#[tonic::async_trait]
impl AccessService for AccessCalls {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let call = call_of(&request);
        let v1::JoinRequest { token_id, secret, csr, name } = request.into_inner();
        if let Ok(id) = <[u8; 8]>::try_from(token_id.as_slice()) {
            call.about(format_args!("token {}", TokenId::from(id)));
        }
        let joining = Joining { token_id, secret, csr, name };
        let joined = self.0.access.join(joining, call.address().ip()).await;
        let joined = joined.map_err(|error| self.failed(error))?;
        tracing::info!(
            role = %joined.record.role, name = joined.record.name, serial = joined.record.serial, "joined"
        );
        Ok(Response::new(v1::JoinResponse { certified: Some(certified(joined)) }))
    }

    async fn renew_certificate(
        &self,
        request: Request<v1::RenewCertificateRequest>,
    ) -> Result<Response<v1::RenewCertificateResponse>, Status> {
        let call = call_of(&request);
        let renewed = self.0.access.renew(call.caller(), request.into_inner().csr).await;
        let renewed = renewed.map_err(|error| self.failed(error))?;
        call.about(format_args!("certificate {}", renewed.record.serial));
        Ok(Response::new(v1::RenewCertificateResponse { certified: Some(certified(renewed)) }))
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        let call = call_of(&request);
        // Of certificates from elsewhere, and of the one that the coordinator's own machine has, nothing is stored.
        let valid = request.extensions().get::<Peer>().and_then(|peer| peer.valid);
        let WhoIsIt { known, roots_pem, expires } = self.0.access.who_is(call.caller());
        let expire_time = expires.map(outbound::time).or(valid.map(|valid| valid.until.into()));
        let Some(known) = known else {
            let time = Some(SystemTime::now().into());
            return Ok(Response::new(v1::WhoAmIResponse {
                roots_pem,
                expire_time,
                time,
                ..Default::default()
            }));
        };
        let has_files = known.role != Role::Worker;
        let used = if has_files { self.0.quotas.usage(&known.name).await } else { Ok(None) };
        Ok(Response::new(v1::WhoAmIResponse {
            role: role_to_wire(known.role).into(),
            name: known.name,
            cluster: known.cluster.to_string(),
            roots_pem,
            expire_time,
            usage: used.map_err(FailedRequest::from)?.map(|(used, limits)| owner_usage(used, limits)),
            time: Some(SystemTime::now().into()),
        }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let call = call_of(&request);
        let new = self.new_token(request.into_inner())?;
        let made = self.0.access.create_token(call.caller(), new).await.map_err(FailedRequest::from)?;
        let TokenRecord { id, kind, role, name, .. } = &made.record;
        let holder = format!("{role} {name}");
        call.about(format_args!("{} token {id} for {}", kind.as_str(), holder.trim_end()));
        Ok(Response::new(v1::CreateTokenResponse { token: Some(token(&made.record)), secret: made.line }))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        Ok(Response::new(self.page_of_tokens(request.into_inner()).await?))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        let call = call_of(&request);
        let given = request.into_inner().token_id;
        let id: TokenId = given.parse().map_err(|_| {
            let given: String = given.chars().take(40).collect();
            let problem = format!("got {given:?}; allowed: 16 hexadecimal digits, as ListTokens shows them");
            status::bad_field(&FieldError::new("token_id", problem))
        })?;
        call.about(format_args!("token {id}"));
        let found = self.0.access.revoke_token(id).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::RevokeTokenResponse { found: Some(found) }))
    }

    async fn list_certificates(
        &self,
        request: Request<v1::ListCertificatesRequest>,
    ) -> Result<Response<v1::ListCertificatesResponse>, Status> {
        Ok(Response::new(self.page_of_certificates(request.into_inner()).await?))
    }

    async fn revoke_certificate(
        &self,
        request: Request<v1::RevokeCertificateRequest>,
    ) -> Result<Response<v1::RevokeCertificateResponse>, Status> {
        let call = call_of(&request);
        let which = which(request.into_inner()).map_err(FailedRequest::from)?;
        match &which {
            Which::Serial(serial) => call.about(format_args!("certificate {serial}")),
            Which::Member(role, name) => call.about(format_args!("{role} {name}")),
        }
        let found = self.0.access.revoke(which).await.map_err(FailedRequest::from)?;
        let found = found.map(|found| i32::try_from(found).unwrap_or(i32::MAX));
        Ok(Response::new(v1::RevokeCertificateResponse { found }))
    }

    async fn get_authority(
        &self,
        _request: Request<v1::GetAuthorityRequest>,
    ) -> Result<Response<v1::GetAuthorityResponse>, Status> {
        let view = self.0.access.authority().await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::GetAuthorityResponse { authority: Some(authority(&view)) }))
    }

    async fn rotate_authority(
        &self,
        _request: Request<v1::RotateAuthorityRequest>,
    ) -> Result<Response<v1::RotateAuthorityResponse>, Status> {
        let view = self.0.access.rotate().await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::RotateAuthorityResponse { authority: Some(authority(&view)) }))
    }

    async fn retire_authority(
        &self,
        request: Request<v1::RetireAuthorityRequest>,
    ) -> Result<Response<v1::RetireAuthorityResponse>, Status> {
        let force = request.into_inner().force;
        let view = self.0.access.retire(force).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::RetireAuthorityResponse { authority: Some(authority(&view)) }))
    }
}

impl AccessCalls {
    /// Counts a refusal that only the store could decide.
    fn failed(&self, error: crate::access::Error) -> FailedRequest {
        match error {
            crate::access::Error::Denied(denied) => self.0.deny(denied),
            other => other.into(),
        }
    }

    fn new_token(&self, wire: v1::CreateTokenRequest) -> Result<NewToken, FailedRequest> {
        if !self.0.access.is_secured() {
            return Err(crate::access::Error::NothingAuthenticated.into());
        }
        let kind = match wire.kind() {
            Kind::Join => TokenKind::Join,
            Kind::Access => TokenKind::Access,
            Kind::Unspecified => {
                let problem = format!("got {}; allowed: 1 (JOIN) or 2 (ACCESS)", wire.kind);
                return Err(FieldError::new("kind", problem).into());
            }
        };
        let ttl = wire.ttl.map(|ttl| {
            Duration::try_from(ttl)
                .map_err(|_| FieldError::new("ttl", "is negative; allowed: at least one minute"))
        });
        Ok(NewToken {
            kind,
            role: role_from_wire("role", wire.role)?,
            ttl: ttl.transpose()?,
            uses: unsigned("uses", wire.uses.into())?,
            name: wire.name,
        })
    }
}

fn which(request: v1::RevokeCertificateRequest) -> Result<Which, FieldError> {
    use revoke_certificate_request::Which as Wire;
    match request.which {
        Some(Wire::Serial(serial)) => Ok(Which::Serial(serial)),
        Some(Wire::Member(member)) => {
            Ok(Which::Member(role_from_wire("member.role", member.role)?, member.name))
        }
        None => Err(FieldError::new("which", "is missing; allowed: serial, or member")),
    }
}

fn role_from_wire(field: &str, given: i32) -> Result<Role, FieldError> {
    match v1::Role::try_from(given) {
        Ok(v1::Role::Worker) => Ok(Role::Worker),
        Ok(v1::Role::Submitter) => Ok(Role::Submitter),
        Ok(v1::Role::Observer) => Ok(Role::Observer),
        Ok(v1::Role::Admin) => Ok(Role::Admin),
        Ok(v1::Role::Unspecified) | Err(_) => {
            let problem =
                format!("got {given}; allowed: 1 (WORKER), 2 (SUBMITTER), 3 (OBSERVER) or 4 (ADMIN)");
            Err(FieldError::new(field, problem))
        }
    }
}

/// A role on the wire.
pub(super) fn role_to_wire(role: Role) -> v1::Role {
    match role {
        Role::Worker => v1::Role::Worker,
        Role::Submitter => v1::Role::Submitter,
        Role::Observer => v1::Role::Observer,
        Role::Admin => v1::Role::Admin,
    }
}

fn certified(given: Certified) -> v1::Certified {
    let Certified { chain_pem, roots_pem, expires, .. } = given;
    v1::Certified { chain_pem, roots_pem, expire_time: Some(expires.into()) }
}

/// A token without its secret.
pub(super) fn token(record: &TokenRecord) -> v1::Token {
    let kind = match record.kind {
        TokenKind::Join => Kind::Join,
        TokenKind::Access => Kind::Access,
    };
    let uses_left = if record.kind == TokenKind::Join { record.uses_left } else { 0 };
    v1::Token {
        token_id: record.id.to_string(),
        kind: kind.into(),
        role: role_to_wire(record.role).into(),
        name: record.name.clone(),
        creator: record.creator.clone(),
        create_time: Some(outbound::time(record.created)),
        expire_time: Some(outbound::time(record.expires)),
        uses_left: small(uses_left),
    }
}

/// A certificate that was given.
pub(super) fn certificate(record: &CertificateRecord) -> v1::Certificate {
    let time = |time: Time| outbound::time(time);
    v1::Certificate {
        serial: record.serial.clone(),
        member: Some(v1::Member { role: role_to_wire(record.role).into(), name: record.name.clone() }),
        create_time: Some(time(record.created)),
        expire_time: Some(time(record.expires)),
        revoke_time: record.revoked.map(time),
        root: small(record.root),
    }
}

fn authority(view: &AuthorityView) -> v1::Authority {
    let roots = view.roots.iter().map(|(root, certificates)| v1::Root {
        number: small(root.number),
        sha256: hex::encode(root.sha256),
        create_time: Some(root.valid.from.into()),
        expire_time: Some(root.valid.until.into()),
        certificates: i32::try_from(*certificates).unwrap_or(i32::MAX),
    });
    v1::Authority { cluster: view.cluster.to_string(), roots: roots.collect() }
}

fn owner_usage(used: Usage, limits: OwnerLimits) -> v1::OwnerUsage {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    v1::OwnerUsage {
        bytes: number(used.bytes),
        max_bytes: number(limits.bytes),
        files: number(used.files),
        max_files: number(limits.files),
    }
}

fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// That a worker speaks for itself.
///
/// # Errors
/// It says that it is another one.
pub(super) fn check_worker(call: &Call, given: ringtune_shared::ids::WorkerId) -> Result<(), Denied> {
    use crate::access::Reason;
    match call.caller().known() {
        Some(known) if known.name != given.to_string() => {
            let text = format!("hello.worker_id: got {given}; the certificate is that of {known}");
            Err(Denied::new(Reason::Worker, text))
        }
        _ => Ok(()),
    }
}
