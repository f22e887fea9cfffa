//! Tokens and certificates, as they are made, used and revoked over the wire.

use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, create_token_request::Kind,
    job_service_client::JobServiceClient, revoke_certificate_request::Which,
};
use ringtune_security::{Connector, Credentials, Csr, JoinToken, PrivateKey, Role, Roots, Trust};
use tonic::{
    Code, Status,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;

use crate::{
    soon,
    stage::{Bearer, NODE, Stage},
};

fn join_token(role: v1::Role, name: &str, uses: i32) -> v1::CreateTokenRequest {
    let kind = Kind::Join.into();
    v1::CreateTokenRequest { kind, role: role.into(), name: name.to_owned(), uses, ..Default::default() }
}

fn field(status: &Status) -> String {
    status.get_details_bad_request().unwrap().field_violations.remove(0).field
}

impl Stage {
    /// Joins as a program does that knows the token alone.
    async fn join(&self, line: &str, name: &str) -> Result<Credentials, Status> {
        let (key, csr) = Csr::make().unwrap();
        self.join_with(line, name, key, csr.der().to_vec()).await
    }

    async fn join_with(
        &self,
        line: &str,
        name: &str,
        key: PrivateKey,
        csr: Vec<u8>,
    ) -> Result<Credentials, Status> {
        let token: JoinToken = line.parse().unwrap();
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address())).unwrap();
        let channel: Channel = endpoint.connect_with_connector(Connector::joining(&token)).await.unwrap();
        let request = v1::JoinRequest {
            token_id: token.id.bytes().to_vec(),
            secret: token.secret.reveal().to_vec(),
            csr,
            name: name.to_owned(),
        };
        let joined = AccessServiceClient::new(channel).join(request).await?.into_inner().certified.unwrap();
        Ok(Credentials::new(key, &joined.chain_pem, Roots::from_pem(&joined.roots_pem).unwrap()).unwrap())
    }

    async fn with(&self, credentials: &Credentials) -> AccessServiceClient<crate::stage::Client> {
        let channel = self.connect(Trust::of(credentials.clone()).unwrap()).await;
        AccessServiceClient::new(InterceptedService::new(channel, Bearer::default()))
    }
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_a_stranger_sends_little() {
    let stage = Stage::new().await;
    let line = stage.token(join_token(v1::Role::Worker, "", 0)).await.secret;
    let (key, csr) = Csr::make().unwrap();
    let join = |csr| stage.join_with(&line, NODE, key.clone(), csr);
    // 1. Too much for a request, and for a CSR.
    let large = join(vec![0x30; 20_000]).await.unwrap_err();
    assert_eq!(large.code(), Code::OutOfRange, "{large}");
    let large = join(vec![0x30; 9_000]).await.unwrap_err();
    assert_eq!(field(&large), "csr");
    assert!(large.message().len() < 300, "{large}");
    // 2. The token has one use, and the same key may come again.
    let lost = join(csr.der().to_vec()).await.unwrap();
    let again = join(csr.der().to_vec()).await.unwrap();
    assert_ne!(lost.serial(), again.serial());
    let me = stage.with(&again).await.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    assert_eq!(me.name, NODE);
    // 3. Another key may not, nor this one after a revocation.
    let other = stage.join(&line, NODE).await.unwrap_err();
    assert_eq!(other.code(), Code::Unauthenticated, "{other}");
    let mut admin = stage.access(Role::Admin, "root").await;
    let member = v1::Member { role: v1::Role::Worker.into(), name: NODE.to_owned() };
    let request = v1::RevokeCertificateRequest { which: Some(Which::Member(member)) };
    admin.revoke_certificate(request).await.unwrap();
    let revoked = join(csr.der().to_vec()).await.unwrap_err();
    assert_eq!(revoked.code(), Code::Unauthenticated, "{revoked}");
}

#[tokio::test]
async fn one_token_lets_a_worker_in_and_it_renews_by_itself() {
    let stage = Stage::new().await;
    let made = stage.token(join_token(v1::Role::Worker, "", 0)).await;
    let token = made.token.unwrap();
    assert_eq!((token.kind(), token.role(), token.uses_left), (Kind::Join, v1::Role::Worker, 1));
    assert_eq!((token.creator.as_str(), token.name.as_str()), ("root", ""));
    assert!(!token.token_id.is_empty() && made.secret.starts_with("rtj1."));
    let first = stage.join(&made.secret, NODE).await.unwrap();
    let used = stage.join(&made.secret, NODE).await.unwrap_err();
    assert_eq!(used.code(), Code::Unauthenticated);
    assert!(used.message().contains("used up"), "{used}");

    let mut worker = stage.with(&first).await;
    let me = worker.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    assert_eq!((me.role(), me.name.as_str()), (v1::Role::Worker, NODE));
    assert_eq!(me.cluster, stage.pki.cluster().to_string());
    assert_eq!(me.roots_pem, stage.pki.trust().roots().pem());
    assert_eq!(me.expire_time.unwrap(), first.validity().until.into());
    // Of the one that the coordinator's own machine has nothing is stored.
    let local = Credentials::load(&stage.folder.path().join("admin")).unwrap().unwrap();
    let me = stage.with(&local).await.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    assert_eq!((me.role(), me.expire_time.unwrap()), (v1::Role::Admin, local.validity().until.into()));
    let (key, csr) = Csr::make().unwrap();
    let request = v1::RenewCertificateRequest { csr: csr.der().to_vec() };
    let next = worker.renew_certificate(request).await.unwrap().into_inner().certified.unwrap();
    let second = Credentials::new(key, &next.chain_pem, Roots::from_pem(&next.roots_pem).unwrap()).unwrap();
    assert_eq!(second.identity().unwrap().name, NODE);
    assert_ne!(second.serial(), first.serial());

    let mut observer = stage.access(Role::Observer, "olga").await;
    let request = |page_token| v1::ListCertificatesRequest { page_size: 1, page_token };
    let page = observer.list_certificates(request(String::new())).await.unwrap().into_inner();
    assert_eq!(page.certificates[0].serial, second.serial());
    let page = observer.list_certificates(request(page.next_page_token)).await.unwrap().into_inner();
    assert_eq!(page.certificates[0].serial, first.serial());
    assert!(page.next_page_token.is_empty());
    let authority = observer.get_authority(v1::GetAuthorityRequest {}).await.unwrap().into_inner();
    let authority = authority.authority.unwrap();
    assert_eq!((authority.roots[0].number, authority.roots[0].certificates), (1, 1));
    assert_eq!(authority.roots[0].sha256, hex::encode(stage.pki.root_hash().unwrap()));

    // Revoked: what is open ends, and nothing new is opened.
    let mut admin = stage.access(Role::Admin, "root").await;
    let member = v1::Member { role: v1::Role::Worker.into(), name: NODE.to_owned() };
    let request = v1::RevokeCertificateRequest { which: Some(Which::Member(member)) };
    for _ in 0..2 {
        admin.revoke_certificate(request.clone()).await.unwrap();
    }
    soon("the end of its connection", async {
        while worker.who_am_i(v1::WhoAmIRequest {}).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let status = stage.with(&second).await.who_am_i(v1::WhoAmIRequest {}).await;
    if let Err(status) = status {
        assert!(
            matches!(status.code(), Code::Unauthenticated | Code::Unavailable | Code::Unknown),
            "{status}"
        );
    } else {
        panic!("a revoked certificate opens something");
    }
    stage.stop().await;
}

#[tokio::test]
async fn an_access_token_opens_calls_until_it_is_revoked() {
    let stage = Stage::new().await;
    let made = stage.bearer(v1::Role::Submitter, "ada").await;
    assert!(made.secret.starts_with("rta1."));
    let client = stage.anybody(Some(&made.secret)).await;
    let mut access = AccessServiceClient::new(client.clone());
    let me = access.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    assert_eq!((me.role(), me.name.as_str()), (v1::Role::Submitter, "ada"));
    let mut watch =
        JobServiceClient::new(client).watch_jobs(v1::WatchJobsRequest::default()).await.unwrap().into_inner();
    let mut admin = stage.access(Role::Admin, "root").await;
    let listed = admin.list_tokens(v1::ListTokensRequest::default()).await.unwrap().into_inner().tokens;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].uses_left), ("ada", 0));
    let token_id = listed[0].token_id.clone();
    for _ in 0..2 {
        admin.revoke_token(v1::RevokeTokenRequest { token_id: token_id.clone() }).await.unwrap();
    }
    let ended = soon("the end of the watch", watch.message()).await.unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated);
    assert!(ended.message().contains("revoked"), "{ended}");
    let refused = access.who_am_i(v1::WhoAmIRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(!refused.message().contains(&made.secret[5..20]), "a secret is never shown");
    assert_eq!(stage.denied("token"), 1);
    stage.stop().await;
}

#[tokio::test]
async fn guesses_are_counted_and_stopped() {
    let stage = Stage::new().await;
    let guess = ringtune_security::AccessToken::new().unwrap().reveal();
    let mut guessing = AccessServiceClient::new(stage.anybody(Some(&guess)).await);
    for _ in 0..20 {
        let refused = guessing.who_am_i(v1::WhoAmIRequest {}).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    let refused = guessing.who_am_i(v1::WhoAmIRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!((stage.denied("token"), stage.denied("too_many_tokens")), (20, 1));
    // Certificates are not concerned.
    assert!(stage.access(Role::Admin, "root").await.who_am_i(v1::WhoAmIRequest {}).await.is_ok());
    stage.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_named_by_its_field() {
    let stage = Stage::new().await;
    let mut admin = stage.access(Role::Admin, "root").await;
    let good = join_token(v1::Role::Submitter, "ada", 0);
    let ttl = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    for (request, expected) in [
        (v1::CreateTokenRequest { kind: 0, ..good.clone() }, "kind"),
        (v1::CreateTokenRequest { role: 0, ..good.clone() }, "role"),
        (v1::CreateTokenRequest { role: 9, ..good.clone() }, "role"),
        (v1::CreateTokenRequest { name: String::new(), ..good.clone() }, "name"),
        (v1::CreateTokenRequest { ttl: ttl(59), ..good.clone() }, "ttl"),
        (v1::CreateTokenRequest { ttl: ttl(-1), ..good.clone() }, "ttl"),
        (v1::CreateTokenRequest { uses: -1, ..good.clone() }, "uses"),
        (v1::CreateTokenRequest { uses: 10_001, ..good.clone() }, "uses"),
    ] {
        assert_eq!(field(&admin.create_token(request).await.unwrap_err()), expected);
    }
    let request = v1::RevokeTokenRequest { token_id: "mine".to_owned() };
    assert_eq!(field(&admin.revoke_token(request).await.unwrap_err()), "token_id");
    let nothing = admin.revoke_certificate(v1::RevokeCertificateRequest { which: None }).await.unwrap_err();
    assert_eq!(field(&nothing), "which");
    let request = v1::RevokeCertificateRequest { which: Some(Which::Serial("x".to_owned())) };
    assert_eq!(field(&admin.revoke_certificate(request).await.unwrap_err()), "serial");
    let alone = admin.retire_authority(v1::RetireAuthorityRequest { force: true }).await.unwrap_err();
    assert_eq!(alone.code(), Code::FailedPrecondition);
    stage.stop().await;
}

#[tokio::test]
async fn the_authority_is_rotated_while_everybody_goes_on() {
    let stage = Stage::new().await;
    let line = stage.token(join_token(v1::Role::Worker, "", 2)).await.secret;
    let worker = stage.join(&line, NODE).await.unwrap();
    let mut open = stage.with(&worker).await;
    let mut admin = stage.access(Role::Admin, "root").await;
    let rotated = admin.rotate_authority(v1::RotateAuthorityRequest {}).await.unwrap().into_inner();
    assert_eq!(rotated.authority.unwrap().roots.len(), 2);
    assert!(open.who_am_i(v1::WhoAmIRequest {}).await.is_ok(), "open connections go on");
    assert!(stage.with(&worker).await.who_am_i(v1::WhoAmIRequest {}).await.is_ok(), "and new ones");
    let other = "0193f2a4-5b6c-7d8e-9f00-112233445577";
    assert!(stage.join(&line, other).await.is_ok(), "a token of before lets in");
    let needed = admin.retire_authority(v1::RetireAuthorityRequest { force: false }).await.unwrap_err();
    assert_eq!(needed.code(), Code::FailedPrecondition);
    assert!(needed.message().contains(NODE) && !needed.message().contains(other), "{needed}");
    let retired = admin.retire_authority(v1::RetireAuthorityRequest { force: true }).await.unwrap();
    assert_eq!(retired.into_inner().authority.unwrap().roots.len(), 1);
    // Connections without a newer certificate end, and are not opened again.
    let ended = async { while open.who_am_i(v1::WhoAmIRequest {}).await.is_ok() {} };
    soon("the end of the connection", ended).await;
    stage.stop().await;
}

#[tokio::test]
async fn without_tls_nobody_is_asked_and_there_is_nothing_to_hand_out() {
    let access = crate::stage::plain().await;
    let mut client = access.0.clone();
    let me = client.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    assert_eq!((me.role(), me.name.as_str(), me.cluster.as_str()), (v1::Role::Unspecified, "", ""));
    let refused = [
        client.join(v1::JoinRequest::default()).await.map(drop),
        client.renew_certificate(v1::RenewCertificateRequest::default()).await.map(drop),
        client.create_token(v1::CreateTokenRequest::default()).await.map(drop),
        client.list_tokens(v1::ListTokensRequest::default()).await.map(drop),
        client.revoke_token(v1::RevokeTokenRequest { token_id: "00".repeat(8) }).await.map(drop),
        client.list_certificates(v1::ListCertificatesRequest::default()).await.map(drop),
        client
            .revoke_certificate(v1::RevokeCertificateRequest { which: Some(Which::Serial("1".to_owned())) })
            .await
            .map(drop),
        client.get_authority(v1::GetAuthorityRequest {}).await.map(drop),
        client.rotate_authority(v1::RotateAuthorityRequest {}).await.map(drop),
        client.retire_authority(v1::RetireAuthorityRequest { force: true }).await.map(drop),
    ];
    for (number, outcome) in refused.into_iter().enumerate() {
        let status = outcome.unwrap_err();
        let expected = (
            Code::FailedPrecondition,
            "nothing is authenticated here (loopback or --insecure): everybody may do everything, and no token is \
             needed; for a network start the coordinator with --listen",
        );
        assert_eq!((status.code(), status.message()), expected, "{number}");
    }
    access.1.stop().await;
}

#[tokio::test]
async fn server_names_are_no_matter_of_luck() {
    // A joining worker knows the coordinator by the hash in its token, not by its address.
    let (stage, other) = (Stage::new().await, Stage::new().await);
    let line = other.token(join_token(v1::Role::Worker, "", 1)).await.secret;
    let token: JoinToken = line.parse().unwrap();
    let endpoint = Endpoint::from_shared(format!("https://{}", stage.address())).unwrap();
    let refused = endpoint.connect_with_connector(Connector::joining(&token)).await;
    assert!(refused.is_err(), "a token of another cluster");
    stage.stop().await;
    other.stop().await;
}
