//! Certificates: given for a token or for another certificate, listed, revoked; and the roots that sign them.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ringtune_security::{Role, Secret, SecretHash, TokenId, identity};
use tracing::warn;

use super::caller::{Caller, Denied, Known, Proof, Reason};
use super::{Access, Error, Secured, now, shown, time_of, to_its_end};
use crate::core::Time;
use crate::network::authority::{LOCAL_ADMIN, RootView};
use crate::store::access::{CertificateRecord, Joined, NewestFirst, TokenKind, TokenRecord};

/// Members that may be revoked at a time, and certificates from elsewhere: all workers hear of them.
const MOST_REVOKED: u32 = 10_000;
/// Holders whom a refusal names.
const MOST_NAMED: usize = 5;
/// What an answer takes to be sent, and a connection to be closed.
const ANSWER: Duration = Duration::from_millis(500);
/// Hexadecimal digits of a serial number: X.509 allows 20 bytes.
const LONGEST_SERIAL: usize = 40;
/// Of one that the cluster's own authority gave: 16 bytes, of which the first is never 0.
const OWN_SERIAL: usize = 32;
/// What the secret of a token that there is not is compared with.
const NO_SECRET: SecretHash = SecretHash([0; 32]);

/// Somebody wants to join.
#[derive(Debug, Clone)]
pub struct Joining {
    /// 8 bytes.
    pub token_id: Vec<u8>,
    /// 32 bytes.
    pub secret: Vec<u8>,
    /// PKCS #10, DER.
    pub csr: Vec<u8>,
    /// Of a worker its UUID.
    pub name: String,
}

/// A certificate that was given.
#[derive(Debug, Clone)]
pub struct Certified {
    /// What is stored.
    pub record: CertificateRecord,
    /// The leaf and what is between it and the roots, PEM.
    pub chain_pem: String,
    /// Whom to trust, PEM.
    pub roots_pem: String,
    /// When it ends.
    pub expires: SystemTime,
}

/// Whom to revoke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// One certificate.
    Serial(String),
    /// All that a member has.
    Member(Role, String),
}

/// Who a caller is.
#[derive(Debug, Clone)]
pub struct WhoIsIt {
    /// None: nothing is authenticated here.
    pub known: Option<Known>,
    /// Whom to trust, PEM.
    pub roots_pem: String,
    /// When the token ends, for whoever has one.
    pub expires: Option<Time>,
}

/// The authority, as people see it.
#[derive(Debug, Clone)]
pub struct AuthorityView {
    /// The cluster.
    pub cluster: ringtune_security::Cluster,
    /// The oldest first, each with how many certificates of it are in use.
    pub roots: Vec<(RootView, u64)>,
}

impl Access {
    /// Gives a certificate for a token. `address`: from where the call comes.
    ///
    /// # Errors
    /// The token is wrong or good no more, a field is, or the member may not join; the store's.
    pub async fn join(&self, joining: Joining, address: IpAddr) -> Result<Certified, Error> {
        let secured = self.part()?;
        if !secured.pki.issues() {
            return Err(Error::FromElsewhere);
        }
        // 1. The token.
        self.check_attempts(address)?;
        let id = TokenId::from(bytes::<8>("token_id", &joining.token_id)?);
        let secret = Secret::from_bytes(bytes("secret", &joining.secret)?);
        let found = secured.store.token(id).await?.filter(|found| found.kind == TokenKind::Join);
        // As long as for a wrong secret: whether there is such a token is not told.
        let right = secret.matches(found.as_ref().map_or(&NO_SECRET, |found| &found.secret));
        let Some(token) = found.filter(|_| right) else {
            let text = "the join token is none of this cluster's, or was revoked: ask for a new one";
            return Err(self.wrong(address, text).into());
        };
        check_token(&token, now())?;
        // 2. The member.
        let name = member_name(&token, joining.name)?;
        // 3. The certificate.
        let access = self.clone();
        to_its_end(async move {
            let secured = access.part()?;
            let _turn = secured.turns.acquire().await;
            let certified = secured.issue(joining.csr, token.role, name).await?;
            match secured.store.join(id, &certified.record).await? {
                Joined::Done => {}
                Joined::NoToken => return Err(used_up().into()),
                Joined::Held(until) => return Err(held(&certified.record, until).into()),
                Joined::Revoked(since) => return Err(still_revoked(&certified.record, since).into()),
            }
            // The member may have been among those who are revoked.
            secured.tell_revoked().await?;
            Ok(certified)
        })
        .await
    }

    /// Gives the holder of a certificate the next one.
    ///
    /// # Errors
    /// It was revoked, or the request cannot be used; the store's.
    pub async fn renew(&self, caller: &Caller, csr: Vec<u8>) -> Result<Certified, Error> {
        if !self.part()?.pki.issues() {
            return Err(Error::FromElsewhere);
        }
        let Some(Known { role, name, proof: Proof::Certificate(serial), .. }) = caller.known().cloned()
        else {
            return Err(Denied::new(Reason::Role, "RenewCertificate needs a certificate").into());
        };
        let access = self.clone();
        to_its_end(async move {
            let secured = access.part()?;
            let _turn = secured.turns.acquire().await;
            let certified = secured.issue(csr, role, name).await?;
            if !secured.store.renew(&serial, &certified.record).await? {
                let text = format!("the certificate {serial} was revoked: join again with a new token");
                return Err(Denied::new(Reason::Certificate, text).into());
            }
            Ok(certified)
        })
        .await
    }

    /// Who a caller is, and whom it is to trust.
    pub fn who_is(&self, caller: &Caller) -> WhoIsIt {
        let Ok(secured) = self.part() else {
            return WhoIsIt { known: None, roots_pem: String::new(), expires: None };
        };
        let expires = match caller.known().map(|known| &known.proof) {
            Some(Proof::Token(_, expires)) => Some(*expires),
            Some(Proof::Certificate(_)) | None => None,
        };
        WhoIsIt { known: caller.known().cloned(), roots_pem: secured.roots_pem(), expires }
    }

    /// A page of the certificates that have not expired, the newest first.
    ///
    /// # Errors
    /// Nothing is authenticated here; the store's.
    pub async fn list_certificates(
        &self,
        after: Option<(Time, String)>,
        limit: u32,
    ) -> Result<Vec<CertificateRecord>, Error> {
        Ok(self.part()?.store.list_certificates(&NewestFirst { after, limit, now: now() }).await?)
    }

    /// Revokes a certificate, or all that a member has: its connections, sessions and calls end. Asking again changes
    /// nothing. What is not known here is revoked too: an older backup may have been put back.
    ///
    /// Returns how many certificates and access tokens that are known here it names; none where another authority makes
    /// the certificates.
    ///
    /// # Errors
    /// A field; too many are revoked; the store's.
    pub async fn revoke(&self, which: Which) -> Result<Option<u64>, Error> {
        let access = self.clone();
        let issues = access.part()?.pki.issues();
        let which = check_which(which, issues)?;
        to_its_end(async move {
            let secured = access.part()?;
            let _turn = secured.turns.acquire().await;
            let now = now();
            let found = match &which {
                Which::Serial(serial) => {
                    let known = secured.store.certificate(serial).await?.is_some();
                    let revoked = secured.store.revoke_serial(serial, now, MOST_REVOKED).await?;
                    revoked.then_some(u64::from(known))
                }
                Which::Member(role, name) => {
                    let gone = secured.store.revoke_member(*role, name, now, MOST_REVOKED).await?;
                    gone.map(|gone| gone.certificates + gone.tokens.len() as u64)
                }
            };
            let Some(found) = found else {
                let (what, instead) = ("revocations that never end", "rotate the authority instead");
                return Err(Error::TooMany { most: MOST_REVOKED, what, instead });
            };
            secured.tokens.send_replace(());
            secured.tell_revoked().await?;
            Ok(issues.then_some(found))
        })
        .await
    }

    /// The roots, and how much they are in use.
    ///
    /// # Errors
    /// Nothing is authenticated here; the store's.
    pub async fn authority(&self) -> Result<AuthorityView, Error> {
        self.part()?.view().await
    }

    /// Makes a new root, which signs from now on.
    ///
    /// # Errors
    /// There are two already; certificates come from elsewhere.
    pub async fn rotate(&self) -> Result<AuthorityView, Error> {
        let access = self.clone();
        to_its_end(async move {
            let secured = access.part()?;
            let _turn = secured.turns.acquire().await;
            secured.pki.rotate().await?;
            secured.view().await
        })
        .await
    }

    /// Stops trusting the older root. `force`: also where somebody needs it.
    ///
    /// # Errors
    /// Somebody does; there is one root only; certificates come from elsewhere.
    pub async fn retire(&self, force: bool) -> Result<AuthorityView, Error> {
        let access = self.clone();
        to_its_end(async move {
            let secured = access.part()?;
            let _turn = secured.turns.acquire().await;
            let newest = secured.pki.roots().last().map(|root| root.number).filter(|_| secured.pki.issues());
            if let Some(newest) = newest.filter(|_| !force) {
                let limit = u32::try_from(MOST_NAMED + 1).unwrap_or(u32::MAX);
                let holders = secured.store.holders_before(newest, now(), limit).await?;
                if !holders.is_empty() {
                    return Err(Error::InUse { holders: named(&holders) });
                }
            }
            let out = match newest {
                Some(newest) => secured.store.holders_before(newest, now(), MOST_REVOKED).await?,
                None => Vec::new(),
            };
            secured.pki.retire().await?;
            if let Some(newest) = newest {
                secured.store.forget_before(newest).await?;
            }
            if !out.is_empty() {
                tokio::spawn(put_out(access.clone(), out));
            }
            secured.view().await
        })
        .await
    }
}

impl Secured {
    /// Signs a certificate, which nobody has yet.
    async fn issue(&self, csr: Vec<u8>, role: Role, name: String) -> Result<Certified, Error> {
        let issued = self.pki.issue(csr, role, name.clone()).await?;
        let record = CertificateRecord {
            serial: issued.serial.clone(),
            role,
            name,
            created: now(),
            expires: time_of(issued.valid.until),
            root: self.pki.roots().last().map_or(0, |root| root.number),
            revoked: None,
            key_sha256: issued.key_sha256,
        };
        let (chain_pem, expires) = (issued.chain_pem(), issued.valid.until);
        Ok(Certified { record, chain_pem, roots_pem: self.roots_pem(), expires })
    }

    fn roots_pem(&self) -> String {
        self.pki.trust().roots().pem()
    }

    /// Tells the ports and the workers who is revoked.
    async fn tell_revoked(&self) -> Result<(), Error> {
        self.pki.set_revoked(self.store.revoked(now()).await?);
        Ok(())
    }

    async fn view(&self) -> Result<AuthorityView, Error> {
        let counts = self.store.in_use(now()).await?;
        let roots = self.pki.roots().into_iter().map(|root| {
            let count = counts.get(&root.number).copied().unwrap_or(0);
            (root, count)
        });
        Ok(AuthorityView { cluster: self.pki.cluster(), roots: roots.collect() })
    }
}

fn bytes<const N: usize>(field: &'static str, given: &[u8]) -> Result<[u8; N], Error> {
    given.try_into().map_err(|_| Error::field(field, format!("{} bytes; allowed: {N}", given.len())))
}

/// Ends the connections of those whom only a root was good for that is gone. None of theirs opens again.
async fn put_out(access: Access, holders: Vec<(Role, String)>) {
    // Who asked for it may be one of them, and is to hear the answer first.
    tokio::time::sleep(ANSWER).await;
    let Ok(secured) = access.part() else { return };
    let _turn = secured.turns.acquire().await;
    let told = async {
        let mut revoked = secured.store.revoked(now()).await?;
        revoked.members.extend(holders);
        secured.pki.set_revoked(revoked);
        // They may join again with a new token.
        tokio::time::sleep(ANSWER).await;
        secured.tell_revoked().await
    };
    if let Err(error) = told.await {
        warn!(%error, "connections with certificates of the retired root may still be open");
    }
}

/// Refuses a token of whose secret the caller is sure. Whether it was used up is for the store to say, which knows who asks
/// again.
fn check_token(token: &TokenRecord, now: Time) -> Result<(), Denied> {
    if token.expires <= now {
        let text = format!("the join token expired at {}: ask for a new one", shown(token.expires));
        return Err(Denied::new(Reason::Token, text));
    }
    Ok(())
}

fn used_up() -> Denied {
    Denied::new(Reason::Token, "the join token was used up: ask for a new one")
}

/// The name of whoever joins with a token. `given`: of a worker its UUID, of a person nothing or the token's name.
fn member_name(token: &TokenRecord, given: String) -> Result<String, Error> {
    if token.role == Role::Worker {
        identity::check_name(Role::Worker, &given)
            .map_err(|error| Error::field("name", error.to_string()))?;
        return Ok(given);
    }
    if !given.is_empty() && given != token.name {
        let text = format!(
            "the join token is for the {} {}, and not for {:?}: ask for another one",
            token.role,
            token.name,
            given.chars().take(100).collect::<String>()
        );
        return Err(Denied::new(Reason::Token, text).into());
    }
    Ok(token.name.clone())
}

fn held(record: &CertificateRecord, until: Time) -> Denied {
    let text = format!(
        "worker {} has a certificate until {}: revoke it first, or give the worker its own state folder",
        record.name,
        shown(until)
    );
    Denied::new(Reason::Worker, text)
}

fn still_revoked(record: &CertificateRecord, since: Time) -> Denied {
    let text = format!(
        "{} {} was revoked at {}, after the join token was made: ask for a newer one",
        record.role,
        record.name,
        shown(since)
    );
    Denied::new(Reason::Token, text)
}

/// `issues`: the cluster's own authority makes the certificates.
fn check_which(which: Which, issues: bool) -> Result<Which, Error> {
    match which {
        Which::Serial(given) => {
            let serial: String = given.chars().filter(|letter| *letter != ':').collect();
            let serial = serial.to_ascii_lowercase();
            let hex = serial.chars().all(|letter| letter.is_ascii_hexdigit());
            if serial.is_empty() || serial.len() > LONGEST_SERIAL || !hex {
                let given: String = given.chars().take(LONGEST_SERIAL).collect();
                let problem = format!("got {given:?}; allowed: 1 to {LONGEST_SERIAL} hexadecimal digits");
                return Err(Error::field("serial", problem));
            }
            if issues && serial.len() != OWN_SERIAL {
                let problem = format!(
                    "no certificate has the serial number {serial}; give it in full, as `ringtune cert list` shows it"
                );
                return Err(Error::field("serial", problem));
            }
            Ok(Which::Serial(serial))
        }
        Which::Member(role, name) => {
            identity::check_name(role, &name)
                .map_err(|error| Error::field("member.name", error.to_string()))?;
            // Whatever took its certificate's place would be no good either, so that nobody could undo it.
            if issues && role == Role::Admin && name == LOCAL_ADMIN {
                let problem = format!(
                    "the {role} {name} is whoever administers the coordinator's machine, and cannot be revoked by name: nobody could \
                     undo it. Revoke the certificate in the folder \"admin\" of the coordinator's state by its serial number: within a \
                     minute there is another one"
                );
                return Err(Error::field("member.name", problem));
            }
            Ok(Which::Member(role, name))
        }
    }
}

/// "worker 0193…, submitter ada and others"
fn named(holders: &[(Role, String)]) -> String {
    let names: Vec<String> =
        holders.iter().take(MOST_NAMED).map(|(role, name)| format!("{role} {name}")).collect();
    let more = if holders.len() > MOST_NAMED { " and others" } else { "" };
    format!("{}{more}", names.join(", "))
}
